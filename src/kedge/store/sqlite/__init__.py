"""The local store: one SQLite file in WAL mode, one writer with group commit, readers that do not block it."""
