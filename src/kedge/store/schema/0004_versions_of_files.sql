-- What runs did to files, and what was undone of it. Contents are not here: a state names them by their hash.

-- Each change of a file: what it was before, and after.
CREATE TABLE changes (
    id INTEGER PRIMARY KEY,
    workspace_id TEXT NOT NULL,
    session_id TEXT NOT NULL,
    run_id TEXT NOT NULL,
    seq INTEGER NOT NULL,     -- of its event; of one that was found later: of the run's last message
    path BLOB NOT NULL,       -- absolute, as the file system has it
    version INTEGER NOT NULL, -- of this path in this workspace; 1 is what it was before anybody changed it
    before BLOB NOT NULL,
    after BLOB NOT NULL,
    added INTEGER NOT NULL,
    removed INTEGER NOT NULL,
    undone INTEGER NOT NULL DEFAULT 0 -- by which undo
);
CREATE INDEX changes_by_session ON changes (session_id, seq);
CREATE INDEX changes_by_path ON changes (workspace_id, path, version);
CREATE INDEX changes_undone ON changes (undone) WHERE undone > 0;

-- What is at work on files right now: one that a crash leaves behind is looked into by the next server.
CREATE TABLE file_work (
    id INTEGER PRIMARY KEY,
    workspace_id TEXT NOT NULL,
    session_id TEXT NOT NULL,
    run_id TEXT NOT NULL,
    path BLOB,   -- NULL: a command, which may change any file
    before BLOB,
    after BLOB,  -- what is about to be written, where that is known
    hollow BLOB  -- the directory that it will be in, if that is empty before
);

-- Runs whose commands worked in a tree that is not watched, and why it is not.
CREATE TABLE unwatched (
    workspace_id TEXT NOT NULL,
    run_id TEXT NOT NULL,
    session_id TEXT NOT NULL,
    seq INTEGER NOT NULL,
    why TEXT NOT NULL,
    PRIMARY KEY (workspace_id, run_id)
) WITHOUT ROWID;
CREATE INDEX unwatched_by_session ON unwatched (session_id);

CREATE TABLE undos (
    id INTEGER PRIMARY KEY,
    workspace_id TEXT NOT NULL,
    session_id TEXT NOT NULL,
    state TEXT NOT NULL,      -- undoing → undone → redoing → redone; or dropped, by a new prompt
    cut INTEGER NOT NULL,     -- everything from this seq on
    message_id TEXT NOT NULL, -- the first that is hidden
    hides INTEGER NOT NULL,   -- 0: of the files only, for a fork
    fork_after TEXT,          -- the last message of the fork
    plan BLOB NOT NULL        -- each path, what it was when this began, and what it became
);
CREATE INDEX undos_by_session ON undos (session_id, state, id);
CREATE INDEX undos_unfinished ON undos (state) WHERE state IN ('undoing', 'redoing');

ALTER TABLE messages ADD COLUMN undone INTEGER NOT NULL DEFAULT 0; -- by which undo: neither models nor people see it
ALTER TABLE sessions ADD COLUMN undone_from TEXT;                  -- the first message that a redo brings back
ALTER TABLE sessions ADD COLUMN rewritten INTEGER NOT NULL DEFAULT 0; -- counts what makes a remembered history wrong
