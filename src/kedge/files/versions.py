"""The versions of files of one data directory: their contents, and the trees that are watched."""

from __future__ import annotations

from pathlib import Path

from kedge.files.blobs import Blobs
from kedge.files.trees import Trees


class Versions:
    def __init__(self, directory: Path) -> None:
        self.blobs = Blobs(directory)
        self.trees = Trees(self.blobs)

    def close(self) -> None:
        self.blobs.close()
