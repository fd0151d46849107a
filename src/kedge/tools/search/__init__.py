"""Searching files with ripgrep: patterns, listings, and the index of file names."""
