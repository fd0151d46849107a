"""Configuration: files, environment and defaults become one `Config` (see schema.py)."""
