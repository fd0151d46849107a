-- What a person chose for all runs of a session that choose nothing themselves; NULL: what is configured.
ALTER TABLE sessions ADD COLUMN model TEXT;
ALTER TABLE sessions ADD COLUMN effort TEXT;
