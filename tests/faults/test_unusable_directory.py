"""A data directory that cannot be used is refused in one line that says why, to an ordinary user in a process."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Generator
from pathlib import Path

import pytest

from kedge.store.sqlite.store import SqliteStore
from tests.faults.opens import NOBODY
from tests.faults.processes import LIMIT_S, ROOT, environment


@pytest.fixture
def place() -> Generator[Path]:
    """A directory that an ordinary user can reach, unlike pytest's."""
    where = Path(tempfile.mkdtemp(prefix="kedge-"))
    where.chmod(0o755)
    give(where)
    yield where
    where.chmod(0o755)
    for path in where.rglob("*"):
        if path.is_dir():
            path.chmod(0o700)
    shutil.rmtree(where)


def give(path: Path) -> None:
    if os.getuid() == 0:
        os.chown(path, NOBODY, NOBODY)


def opened_by_a_user(directory: Path) -> dict[str, str]:
    result = subprocess.run(
        [sys.executable, "-m", "tests.faults.opens", "--nobody", str(directory)],
        cwd=ROOT,
        env=environment({}),
        capture_output=True,
        check=True,
        timeout=LIMIT_S,
    )
    told = json.loads(result.stdout)
    assert "\n" not in told.get("message", "")
    return told


def test_a_directory_of_ones_own_is_opened(place: Path) -> None:
    assert "opened" in opened_by_a_user(place / "data")


def test_a_read_only_directory_is_refused(place: Path) -> None:
    (place / "data").mkdir()
    (place / "data").chmod(0o555)
    assert opened_by_a_user(place / "data") == {
        "error": "StoreOpenError",
        "message": f"cannot use {place / 'data'} (Permission denied); choose another data directory",
    }
    assert list((place / "data").iterdir()) == []


def test_a_directory_that_may_not_be_entered_is_refused(place: Path) -> None:
    (place / "closed").mkdir(mode=0o000)
    told = opened_by_a_user(place / "closed" / "data")
    assert told["error"] == "StoreOpenError"
    assert "Permission denied" in told["message"]


def test_a_directory_that_cannot_be_made_is_refused(place: Path) -> None:
    place.chmod(0o555)
    told = opened_by_a_user(place / "data")
    assert told["error"] == "StoreOpenError"
    assert "Permission denied" in told["message"]


@pytest.mark.parametrize("inside", ["", "data"], ids=["a file", "below a file"])
def test_a_file_in_place_of_the_directory_is_refused(inside: str, place: Path) -> None:
    (place / "file").write_text("precious")
    told = opened_by_a_user(place / "file" / inside)
    assert told["error"] == "StoreOpenError"
    assert "choose another data directory" in told["message"]
    assert (place / "file").read_text() == "precious"


def test_a_database_that_may_not_be_read_is_refused_and_is_not_called_damaged(place: Path) -> None:
    database = made_by_another_user(place)
    database.chmod(0o000)
    told = opened_by_a_user(place / "data")
    assert told["error"] == "StoreOpenError"
    assert "check its permissions" in told["message"]


@pytest.mark.skipif(os.getuid() != 0, reason="only root can make a file that belongs to somebody else")
def test_a_database_of_somebody_else_is_refused(place: Path) -> None:
    database = made_by_another_user(place)
    database.chmod(0o644)
    told = opened_by_a_user(place / "data")
    assert told["error"] == "StoreOpenError"
    assert "check the directory's permissions" in told["message"]


def made_by_another_user(place: Path) -> Path:
    """A sound database in a directory that the ordinary user may write, but the file is not theirs."""
    SqliteStore.open(place / "data").abandon()
    give(place / "data")
    (place / "data" / "kedge.lock").unlink()
    return place / "data" / "kedge.db"
