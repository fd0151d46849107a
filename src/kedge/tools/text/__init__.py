"""Text files: reading them in pages, finding the place of an edit, and replacing a file atomically."""
