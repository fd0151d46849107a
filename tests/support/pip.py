"""Packages of Python for child processes of tests, installed once and kept in the tests' cache."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from tests.support.cache import cache_directory, cache_lock

LIMIT_S = 300


def install_requirement(*requirements: str) -> Path:
    """Return a directory for `PYTHONPATH` with each NAME==VERSION and what they need."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    directory = cache_directory() / f"{'+'.join(requirements)}-python{version}"
    with cache_lock():
        if not directory.exists():
            unfinished = directory.with_name(f"{directory.name}.unfinished")
            shutil.rmtree(unfinished, ignore_errors=True)
            options = ["--quiet", "--target", str(unfinished), "--python", sys.executable]
            done = subprocess.run(
                [sys.executable, "-m", "uv", "pip", "install", *options, *requirements],
                capture_output=True,
                text=True,
                check=False,
                timeout=LIMIT_S,
            )
            assert done.returncode == 0, done.stderr
            unfinished.replace(directory)
    return directory
