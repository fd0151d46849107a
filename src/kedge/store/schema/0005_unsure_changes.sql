-- Changes whose author is not known for sure: an undo leaves those files alone, and names them.

ALTER TABLE changes ADD COLUMN unsure TEXT; -- why: 'background_job', 'interrupted'; NULL: it is the run's
