-- A running run that waits for a provider's limit or for the network; NULL: it does not.
ALTER TABLE runs ADD COLUMN wait_reason TEXT;
ALTER TABLE runs ADD COLUMN wait_until REAL;
-- When it began to wait, if its model has not answered since: restarts and failed calls do not lengthen the wait.
ALTER TABLE runs ADD COLUMN waiting_since REAL;
