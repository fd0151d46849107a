"""Source distributions of real projects to work on, downloaded once and kept in the tests' cache."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import pytest

from tests.support.cache import cache_directory, cache_lock

SHA256 = {
    "boltons-26.2.0": "d39cfd15c1a1c3bd4d705c82252fa9edb8e4f5e8cc039f8e39afac7b1b47e92c",
    "humanize-4.9.0": "582a265c931c683a7e9b8ed9559089dea7edcf6cc95be39a3cbc2c5d5ac2bcfa",
    "natsort-8.4.0": "45312c4a0e5507593da193dedd04abb1469253b601ecaf63445ad80f0a1ea581",
}


def unpack(release: str, directory: Path) -> Path:
    """Unpack the source of NAME-VERSION; skips the test if the package index cannot be reached. Returns the tree."""
    with tarfile.open(_archive(release)) as archive:
        archive.extractall(directory, filter="data")
    return directory / release


def _archive(release: str) -> Path:
    kept = cache_directory() / f"{release}.tar.gz"
    with cache_lock():
        if not kept.exists():
            with tempfile.TemporaryDirectory(dir=cache_directory()) as scratch:
                _download(release, Path(scratch)).replace(kept)
    return kept


def _download(release: str, directory: Path) -> Path:
    name, _, version = release.rpartition("-")
    options = ["--quiet", "--no-deps", "--no-binary", name, "--no-input", "--disable-pip-version-check"]
    command = [sys.executable, "-m", "pip", "download", *options, "-d", str(directory), f"{name}=={version}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if "No matching distribution" in done.stderr:  # also without a connection
        pytest.skip(f"pip cannot download {name} {version} from the package index")
    assert done.returncode == 0, done.stderr
    archive = directory / f"{release}.tar.gz"
    assert hashlib.sha256(archive.read_bytes()).hexdigest() == SHA256[release], f"{release} is not the pinned one"
    return archive
