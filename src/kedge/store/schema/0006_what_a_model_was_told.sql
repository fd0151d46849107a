-- What the model of a session is told beside the conversation. No client sees it.

-- The surroundings as the session first saw them: its system prompt stays the same for its whole life.
CREATE TABLE surroundings (
    session_id TEXT PRIMARY KEY,
    workspace_id TEXT NOT NULL,
    body BLOB NOT NULL
);

ALTER TABLE messages ADD COLUMN note BLOB; -- what had changed by then: sent with the message
CREATE INDEX messages_noted ON messages (session_id, seq) WHERE note IS NOT NULL;
