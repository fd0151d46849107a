"""Process groups that tools start: recorded, found with all their descendants, and ended."""
