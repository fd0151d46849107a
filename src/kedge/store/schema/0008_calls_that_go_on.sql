-- Of an open tool message: what the next server needs to go on with the call. NULL: a crash interrupts it.
ALTER TABLE messages ADD COLUMN call_state BLOB;

-- The tools of MCP servers as the session's requests contain them: they come first in a request, so they stay the same.
ALTER TABLE surroundings ADD COLUMN tools BLOB;
