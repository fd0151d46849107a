"""The newest events of each workspace in memory, encoded once, and the positions of their readers."""
