"""Contents by their hash: once each, private, bounded, and never wrong."""

from __future__ import annotations

import os
import sqlite3
import stat
from pathlib import Path
from typing import Any

import pytest

from kedge.files.blobs import DATABASE, GRACE_S, Blobs
from kedge.files.states import compute_digest
from kedge.files.versions import Versions


@pytest.fixture
def blobs(tmp_path: Path) -> Blobs:
    return Blobs(tmp_path)


def test_a_content_is_kept_once_compressed_and_for_its_owner_alone(blobs: Blobs, tmp_path: Path) -> None:
    data = b"the same line\n" * 100_000
    blobs.put([data, b"", data])
    size = blobs.size_bytes
    blobs.put([data])
    assert blobs.size_bytes == size < len(data) / 10
    assert (blobs.get(compute_digest(data)), blobs.get(compute_digest(b""))) == (data, b"")
    for path in tmp_path.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    blobs.close()
    again = Blobs(tmp_path)
    assert again.get(compute_digest(data)) == data
    again.close()


@pytest.mark.parametrize("stored", [b"z\x00 no zlib", b"rsomething else", b""])
def test_a_damaged_content_is_not_there(blobs: Blobs, stored: bytes) -> None:
    blobs.put([b"content"])
    with blobs.transaction() as db:
        db.execute("UPDATE blobs SET data = ?", (stored,))
    assert blobs.get(compute_digest(b"content")) is None
    blobs.close()


def test_a_damaged_file_is_put_aside(blobs: Blobs, tmp_path: Path) -> None:
    (tmp_path / DATABASE).write_bytes(b"no database at all, but long enough to be looked at" * 100)
    blobs.put([b"content"])
    assert blobs.get(compute_digest(b"content")) == b"content"
    assert (tmp_path / f"{DATABASE}.damaged").exists()
    blobs.close()


class _FailsToCommit:
    """A disk that fails one commit, and is well again."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        self._is_well = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._db, name)

    def execute(self, sql: str, *args: Any) -> sqlite3.Cursor:
        if sql == "COMMIT" and not self._is_well:
            self._is_well = True
            raise sqlite3.OperationalError("disk I/O error")
        return self._db.execute(sql, *args)


def test_after_a_commit_that_failed_the_next_ones_last(blobs: Blobs, tmp_path: Path) -> None:
    blobs.put([b"before"])
    blobs._db = _FailsToCommit(blobs._connect())  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(sqlite3.OperationalError):
        blobs.put([b"lost"])
    blobs.put([b"after"])
    blobs.close()
    again = Blobs(tmp_path)
    assert [again.has(compute_digest(data)) for data in (b"before", b"lost", b"after")] == [True, False, True]
    again.close()


def test_what_nothing_refers_to_goes_after_a_while(tmp_path: Path) -> None:
    now = 1_000_000.0
    blobs = Blobs(tmp_path, now=lambda: now)
    blobs.put([b"used", b"unused"])
    assert blobs.prune({compute_digest(b"used"): 1}, 2**30) == 0, "its record may be on the way"
    now += GRACE_S + 1
    assert blobs.prune({compute_digest(b"used"): 1}, 2**30) == 1
    assert (blobs.has(compute_digest(b"used")), blobs.has(compute_digest(b"unused"))) == (True, False)
    blobs.close()


def test_over_the_bound_what_was_used_longest_ago_goes_first(blobs: Blobs) -> None:
    contents = [os.urandom(100_000) for _ in range(10)]
    blobs.put(contents)
    last_use = {compute_digest(data): place for place, data in enumerate(contents)}
    blobs.prune(last_use, 550_000)
    assert blobs.size_bytes <= 600_000
    kept = [blobs.has(compute_digest(data)) for data in contents]
    assert kept == sorted(kept), "the older went first"
    assert kept[-1]
    blobs.close()


def test_what_a_tree_has_now_stays_whatever_the_bound(tmp_path: Path) -> None:
    root = tmp_path / "tree"
    root.mkdir()
    (root / "file").write_bytes(b"now")
    versions = Versions(tmp_path)
    versions.trees.scan(os.fsencode(root), os.environ, 2**30)
    versions.trees.save(os.fsencode(root))
    versions.blobs.put([b"then"])
    versions.blobs.prune({compute_digest(b"now"): 1, compute_digest(b"then"): 2}, 0)
    assert (versions.blobs.has(compute_digest(b"now")), versions.blobs.has(compute_digest(b"then"))) == (True, False)
    versions.close()
