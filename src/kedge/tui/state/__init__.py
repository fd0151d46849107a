"""The state of the workspace that the interface shows, built from events and reads. No Textual in here."""
