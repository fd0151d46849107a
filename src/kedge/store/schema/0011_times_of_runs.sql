-- When a run was accepted, when its first turn began, and when it ended; NULL for runs from before, and for what has not
-- happened yet.
ALTER TABLE runs ADD COLUMN created_at REAL;
ALTER TABLE runs ADD COLUMN started_at REAL;
ALTER TABLE runs ADD COLUMN ended_at REAL;
