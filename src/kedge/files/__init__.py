"""Versions of files: states, stored contents, scans of a tree, and restoring. Knows nothing of runs."""
