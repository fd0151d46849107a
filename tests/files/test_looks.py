"""A look at a tree finds every change, also one that hides from the clock, and costs little where there is none."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kedge.files import scanning
from kedge.files.states import Observed
from kedge.files.tracked import Uncovered
from kedge.files.versions import Versions


class Watched:
    def __init__(self, directory: Path) -> None:
        self.root = directory / "tree"
        self.root.mkdir()
        self.versions = Versions(directory)

    def look(self, max_bytes: int = 2**30) -> list[str]:
        found = self.versions.trees.look(os.fsencode(self.root), os.environ, max_bytes)
        self.versions.trees.save(os.fsencode(self.root))
        return sorted(os.fsdecode(os.path.relpath(each.path, os.fsencode(self.root))) for each in found)

    def restart(self) -> None:
        self.versions.close()
        self.versions = Versions(self.root.parent)


@pytest.fixture
def watched(tmp_path: Path) -> Watched:
    return Watched(tmp_path)


def settled(path: Path) -> None:
    """Not changed just now: its stamp can be relied on, as far as its times go."""
    os.utime(path, (1_600_000_000, 1_600_000_000))


def test_a_change_in_the_same_tick_of_the_clock_is_seen(watched: Watched) -> None:
    """Same size, same times, same inode: as a file written twice within one tick."""
    path = watched.root / "file"
    path.write_text("one")
    assert watched.look() == []
    status = path.stat()
    path.write_text("two")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert watched.look() == ["file"]


def test_an_unchanged_file_is_not_read_again(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scanning, "TICK_NS", -(10**12))  # every stamp is old enough
    (watched.root / "file").write_text("one")
    watched.look()
    watched.restart()
    read: list[bytes] = []
    real = scanning.observe

    def observe(path: bytes) -> Observed:
        read.append(path)
        return real(path)

    monkeypatch.setattr(scanning, "observe", observe)
    assert watched.look() == []
    assert read == [], "also after a restart"


def test_what_happened_between_two_servers_is_seen_by_the_second(watched: Watched) -> None:
    (watched.root / "a").write_text("one")
    (watched.root / "b").write_text("one")
    watched.look()
    watched.restart()
    (watched.root / "a").write_text("two")
    (watched.root / "b").unlink()
    assert watched.look() == ["a", "b"]


def test_names_that_are_no_text_are_names_like_others(watched: Watched) -> None:
    watched.look()
    name = os.fsencode(watched.root) + b"/caf\xe9\n"
    Path(os.fsdecode(name)).write_text("x")
    (found,) = watched.versions.trees.look(os.fsencode(watched.root), os.environ, 2**30)
    assert found.path == name


def test_a_tree_that_takes_too_much_room_is_not_watched_and_not_tried_again(watched: Watched) -> None:
    (watched.root / "file").write_bytes(os.urandom(2_000_000))
    for _ in range(2):
        with pytest.raises(Uncovered, match=r"files\.max_bytes"):
            watched.look(1_000_000)


def test_a_file_that_cannot_be_read_is_left_alone(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    (watched.root / "secret").write_text("x")
    real = os.open

    def refuse(path: str | bytes, flags: int, mode: int = 0o777) -> int:
        if os.fsencode(path).endswith(b"/secret"):
            raise PermissionError(13, "Permission denied")
        return real(path, flags, mode)

    monkeypatch.setattr("kedge.files.states.os.open", refuse)
    assert watched.look() == []
    (watched.root / "other").write_text("x")
    assert watched.look() == ["other"]
