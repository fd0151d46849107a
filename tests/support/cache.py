"""A directory for downloads that tests keep between runs: KEDGE_TESTS_CACHE, or one in the user's cache."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path


def cache_directory() -> Path:
    """The same for every worker and every run."""
    given = os.environ.get("KEDGE_TESTS_CACHE")
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(given) if given else base / "kedge-tests"


@contextmanager
def cache_lock() -> Generator[None]:
    """Held by the one process that fills the cache."""
    cache_directory().mkdir(parents=True, exist_ok=True)
    lock = os.open(cache_directory() / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)
