"""Tools, with real files and processes."""
