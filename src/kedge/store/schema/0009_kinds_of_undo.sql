-- An undo restores files and conversation, or one of them; and the timeline of a session shows when it did.

ALTER TABLE undos ADD COLUMN reverts TEXT NOT NULL DEFAULT 'all'; -- which changes: 'all', 'sure' or 'none'
ALTER TABLE undos ADD COLUMN seq INTEGER; -- of the session's event at its end; NULL: not ended, or of an older server
ALTER TABLE undos ADD COLUMN at REAL;     -- when it began, as Unix time
