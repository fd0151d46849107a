"""The versions of files of one data directory: their contents, and the trees that are watched."""

from __future__ import annotations

from pathlib import Path

from kedge.files.blobs import Blobs
from kedge.files.trees import Trees

DEFAULT_MAX_BYTES = 1024 * 1024 * 1024  # weeks of work on a large project, compressed


class Versions:
    """`directory` is the store's; None: they are kept in memory, and end with the process."""

    def __init__(self, directory: Path | None) -> None:
        self.blobs = Blobs(directory)
        self.trees = Trees(self.blobs)

    def close(self) -> None:
        self.blobs.close()
