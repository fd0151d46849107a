-- What happened, in rows. Events refer to runs, messages and requests instead of copying them, so that a run
-- stores its content once and not once for each event (P12).

CREATE TABLE meta (
    key TEXT PRIMARY KEY,
    value TEXT NOT NULL
) WITHOUT ROWID;

CREATE TABLE workspaces (
    id TEXT PRIMARY KEY,
    path TEXT NOT NULL,
    log_id TEXT NOT NULL,
    head INTEGER NOT NULL DEFAULT 0,   -- seq of the newest event
    floor INTEGER NOT NULL DEFAULT 0,  -- seq of the newest event that retention removed
    created_at REAL NOT NULL,
    deleted INTEGER NOT NULL DEFAULT 0 -- nobody sees it any more; its rows go in bites
);
CREATE UNIQUE INDEX workspaces_by_path ON workspaces (path) WHERE deleted = 0;

CREATE TABLE sessions (
    id TEXT PRIMARY KEY,
    workspace_id TEXT NOT NULL,
    title TEXT NOT NULL,
    parent_session_id TEXT,
    created_at REAL NOT NULL,
    updated_at REAL NOT NULL,
    last_seq INTEGER NOT NULL,            -- newest activity; the order of listings
    deleting INTEGER NOT NULL DEFAULT 0,  -- accepts nothing any more; deleted when its runs have ended
    deleted_seq INTEGER,                  -- the event of the deletion; rows go when retention passes it
    deleted_at REAL,
    purged_seq INTEGER NOT NULL DEFAULT 0 -- of a deleted one: the words of runs up to here are gone; deleted_seq: all
);
CREATE INDEX sessions_by_activity ON sessions (workspace_id, last_seq) WHERE deleted_seq IS NULL;
CREATE INDEX sessions_by_parent ON sessions (parent_session_id) WHERE parent_session_id IS NOT NULL;
CREATE INDEX sessions_deleted ON sessions (workspace_id, deleted_seq) WHERE deleting = 1;

CREATE TABLE runs (
    workspace_id TEXT NOT NULL,
    run_id TEXT NOT NULL,
    session_id TEXT NOT NULL,
    kind TEXT NOT NULL,
    state TEXT NOT NULL,
    on_busy TEXT NOT NULL,
    permissions TEXT NOT NULL,
    model TEXT,
    seq INTEGER NOT NULL,             -- of the acceptance
    rank INTEGER NOT NULL,            -- 0: an interrupt, ahead of the queue; else 1
    may_join INTEGER NOT NULL,        -- steered, and the turn that it was meant for has not ended
    attempt INTEGER NOT NULL DEFAULT 0,
    epoch INTEGER NOT NULL DEFAULT 0, -- counts every start; a turn's claim names it
    is_claimed INTEGER NOT NULL DEFAULT 0, -- a turn of this server works on it, or did until its actor failed
    suspended INTEGER NOT NULL DEFAULT 0,
    cancel_requested INTEGER NOT NULL DEFAULT 0,
    merged_into TEXT,
    parent_run_id TEXT,
    body_hash BLOB NOT NULL,
    user_message_id TEXT,
    message_id TEXT,
    error TEXT,
    code TEXT,
    usage BLOB,
    PRIMARY KEY (workspace_id, run_id)
);
CREATE INDEX runs_open ON runs (session_id, state, rank, seq) WHERE state IN ('queued', 'running');
CREATE INDEX runs_by_session ON runs (session_id, seq);
CREATE INDEX runs_by_acceptance ON runs (workspace_id, seq);
CREATE INDEX runs_by_state ON runs (workspace_id, state, seq);
CREATE INDEX runs_joined ON runs (workspace_id, merged_into, seq) WHERE merged_into IS NOT NULL;
CREATE INDEX runs_children ON runs (workspace_id, parent_run_id, seq) WHERE parent_run_id IS NOT NULL;

-- Beside its run, whose row is written anew at each change of state: a prompt may have megabytes.
CREATE TABLE prompts (
    workspace_id TEXT NOT NULL,
    run_id TEXT NOT NULL,
    prompt TEXT NOT NULL,
    attachments BLOB,  -- until the user message is written, which then holds them
    PRIMARY KEY (workspace_id, run_id)
) WITHOUT ROWID;

CREATE TABLE messages (
    id TEXT PRIMARY KEY,
    workspace_id TEXT NOT NULL,
    session_id TEXT NOT NULL,
    run_id TEXT NOT NULL,
    role TEXT NOT NULL,
    model TEXT,
    summary INTEGER NOT NULL DEFAULT 0,
    created_at REAL NOT NULL,
    seq INTEGER NOT NULL,                 -- of its creation; the order of messages
    reason TEXT,                          -- of its finish; NULL while it is being written
    hidden INTEGER NOT NULL DEFAULT 0,    -- kept from the model
    call_message_id TEXT,                 -- of a tool message: which call it answers
    call_id TEXT,
    call_name TEXT
);
CREATE INDEX messages_by_session ON messages (session_id, seq);
CREATE INDEX messages_by_run ON messages (workspace_id, run_id, seq);

CREATE TABLE parts (
    message_id TEXT NOT NULL,
    idx INTEGER NOT NULL,
    body BLOB NOT NULL,
    PRIMARY KEY (message_id, idx)
);

-- Text in flight, appended piece by piece and folded into its part at the part's end.
CREATE TABLE drafts (
    id INTEGER PRIMARY KEY,
    message_id TEXT NOT NULL,
    part INTEGER NOT NULL,
    kind TEXT NOT NULL,
    head BLOB,
    text BLOB NOT NULL
);
CREATE INDEX drafts_by_message ON drafts (message_id, part);

CREATE TABLE requests (
    id TEXT PRIMARY KEY,
    workspace_id TEXT NOT NULL,
    kind TEXT NOT NULL,
    asker_run_id TEXT NOT NULL,
    message_id TEXT NOT NULL,
    tool_call_id TEXT NOT NULL,
    seq INTEGER NOT NULL,
    body BLOB NOT NULL,
    answer BLOB,
    digest BLOB NOT NULL,  -- of what is asked: a call may ask for several things
    UNIQUE (workspace_id, asker_run_id, message_id, tool_call_id, kind, digest)
);
CREATE INDEX requests_pending ON requests (workspace_id, seq) WHERE answer IS NULL;

-- The key comes first: SQLite 3.40's own check calls any other order of a table without rowid damaged.
CREATE TABLE processes (
    pgid INTEGER NOT NULL,
    started TEXT NOT NULL,
    workspace_id TEXT NOT NULL,
    run_id TEXT NOT NULL,
    PRIMARY KEY (pgid, started)
) WITHOUT ROWID;

CREATE TABLE events (
    workspace_id TEXT NOT NULL,
    seq INTEGER NOT NULL,
    at REAL NOT NULL,       -- for retention by age only; order comes from seq
    type TEXT NOT NULL,
    change TEXT NOT NULL,
    session_id TEXT NOT NULL,
    subject TEXT,           -- the run, message or request that the event tells of
    parts INTEGER,          -- of a message: how many finished parts it had then
    body BLOB,              -- what the subject's row does not hold
    PRIMARY KEY (workspace_id, seq)
) WITHOUT ROWID;
CREATE INDEX events_by_session ON events (workspace_id, session_id, seq);
