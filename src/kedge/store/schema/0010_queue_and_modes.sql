-- The place of a run in the queue of its session: the lowest starts first. At first that of its acceptance; those that
-- interrupt are ahead of all others. (It replaces `rank`, which cannot tell a queue that somebody put in order.)
ALTER TABLE runs ADD COLUMN place INTEGER NOT NULL DEFAULT 0;
UPDATE runs SET place = CASE rank WHEN 0 THEN seq - (1 << 50) ELSE seq END;
DROP INDEX runs_open;
ALTER TABLE runs DROP COLUMN rank;
CREATE INDEX runs_open ON runs (session_id, state, place) WHERE state IN ('queued', 'running');

-- The mode that was chosen for a run, with its prompt or since; NULL: the configured one.
ALTER TABLE runs ADD COLUMN mode TEXT;
UPDATE runs SET mode = (
    SELECT json_extract(CAST(prompts.options AS TEXT), '$.mode') FROM prompts
    WHERE prompts.workspace_id = runs.workspace_id AND prompts.run_id = runs.run_id
) WHERE state IN ('queued', 'running');
