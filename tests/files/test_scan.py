"""A look at a tree finds every change, also one that hides from the clock, and costs little where there is none."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kedge.files import scan, versions
from kedge.files.listing import CannotScan
from kedge.files.states import ABSENT, UNREADABLE, Observation, State, compute_digest
from kedge.files.versions import Versions


class Watched:
    def __init__(self, directory: Path) -> None:
        self.root = directory / "tree"
        self.root.mkdir()
        self.versions = Versions(directory)

    def scan(self, max_bytes: int = 2**30) -> list[str]:
        found = self.versions.trees.scan(os.fsencode(self.root), os.environ, max_bytes)
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
    assert watched.scan() == []
    status = path.stat()
    path.write_text("two")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert watched.scan() == ["file"]


def test_an_unchanged_file_is_not_read_again(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan, "TICK_NS", -(10**12))  # every stamp is old enough
    (watched.root / "file").write_text("one")
    watched.scan()
    watched.restart()
    read: list[bytes] = []
    real = scan.observe

    def observe(path: bytes, at: int | None = None) -> Observation:
        read.append(path)
        return real(path, at)

    monkeypatch.setattr(scan, "observe", observe)
    assert watched.scan() == []
    assert read == [], "also after a restart"


def test_what_happened_between_two_servers_is_seen_by_the_second(watched: Watched) -> None:
    (watched.root / "a").write_text("one")
    (watched.root / "b").write_text("one")
    watched.scan()
    watched.restart()
    (watched.root / "a").write_text("two")
    (watched.root / "b").unlink()
    assert watched.scan() == ["a", "b"]


def test_names_that_are_no_text_are_names_like_others(watched: Watched) -> None:
    watched.scan()
    name = os.fsencode(watched.root) + b"/caf\xe9\n"
    Path(os.fsdecode(name)).write_text("x")
    (found,) = watched.versions.trees.scan(os.fsencode(watched.root), os.environ, 2**30)
    assert found.path == name


def test_a_tree_that_takes_too_much_room_is_not_watched_and_not_tried_again(watched: Watched) -> None:
    (watched.root / "file").write_bytes(os.urandom(2_000_000))
    for _ in range(2):
        with pytest.raises(CannotScan, match=r"files\.max_bytes"):
            watched.scan(1_000_000)


def test_a_file_that_cannot_be_read_is_left_alone(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    (watched.root / "secret").write_text("x")
    real = os.open

    def refuse(path: str | bytes, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if os.fsencode(path) == b"secret":
            raise PermissionError(13, "Permission denied")
        return real(path, flags, mode, dir_fd=dir_fd)

    monkeypatch.setattr("kedge.files.states.os.open", refuse)
    assert watched.scan() == []
    (watched.root / "other").write_text("x")
    assert watched.scan() == ["other"]


def git(root: Path, *words: str) -> None:
    command = ["git", "-c", "user.name=t", "-c", "user.email=t@t", *words]
    subprocess.run(command, cwd=root, check=True, capture_output=True)


@pytest.fixture
def old(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """From here on, what happened before is old: the clock of the file system has moved on."""
    monkeypatch.setattr(scan, "TICK_NS", 0)
    probe = watched.root.parent / "probe"

    def pass_() -> None:
        now = time.time_ns()
        while not probe.exists() or probe.stat().st_ctime_ns <= now:
            probe.write_text("")

    return pass_


@pytest.mark.parametrize("has_git", [False, True])
def test_what_is_moved_with_its_directory_is_gone_there_and_new_here(
    watched: Watched, old: Callable[[], None], has_git: bool
) -> None:
    """None of its files has a new time."""
    (watched.root / "src/deep").mkdir(parents=True)
    (watched.root / "src/a").write_text("a")
    (watched.root / "src/deep/b").write_text("b")
    if has_git:
        git(watched.root, "init", "-q")
        git(watched.root, "add", ".")
    old()
    assert watched.scan() == []
    old()
    (watched.root / "src").rename(watched.root / "lib")
    (watched.root / ".gitignore").write_text("*.o\n")
    assert watched.scan() == [".gitignore", "lib/a", "lib/deep/b", "src/a", "src/deep/b"]
    old()
    (watched.root / "lib").rename(watched.root / "src")
    (watched.root / ".gitignore").write_text("*.c\n")  # also while the rules change
    assert watched.scan() == [".gitignore", "lib/a", "lib/deep/b", "src/a", "src/deep/b"]


def test_a_directory_that_comes_from_out_of_sight_is_new(watched: Watched, old: Callable[[], None]) -> None:
    (watched.root / ".ignore").write_text("out\n")
    (watched.root / "out/made").mkdir(parents=True)
    (watched.root / "out/made/a").write_text("a")
    (watched.root / "out/stays").write_text("b")
    old()
    assert watched.scan() == []
    old()
    (watched.root / "out/made").rename(watched.root / "made")
    assert watched.scan() == ["made/a"]


def test_a_link_in_the_place_of_a_directory_is_not_followed(watched: Watched, old: Callable[[], None]) -> None:
    (watched.root / "src").mkdir()
    (watched.root / "src/a").write_text("a")
    git(watched.root, "init", "-q")
    git(watched.root, "add", ".")
    old()
    watched.scan()
    old()
    (watched.root / "src").rename(watched.root / "lib")
    (watched.root / "src").symlink_to("lib")
    assert watched.scan() == ["lib/a", "src", "src/a"]


def test_a_file_that_vanishes_during_the_walk_takes_no_other_along(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "abcdef":
        (watched.root / name).write_text(name)
    watched.scan()
    scandir = os.scandir
    with scandir(os.fsencode(watched.root)) as found:
        gone = [entry.name for entry in found][2]

    class Entry:
        def __init__(self, entry: os.DirEntry[bytes]) -> None:
            self.name, self.is_dir, self.is_symlink, self._stat = (
                entry.name,
                entry.is_dir,
                entry.is_symlink,
                entry.stat,
            )

        def stat(self, *, follow_symlinks: bool) -> os.stat_result:
            if self.name == gone:
                raise FileNotFoundError(2, "gone")
            return self._stat(follow_symlinks=follow_symlinks)

    class Entries:
        def __init__(self, path: bytes) -> None:
            self._found = scandir(path)

        def __enter__(self) -> Iterator[Entry]:
            return (Entry(each) for each in self._found)

        def __exit__(self, *_: object) -> None:
            self._found.close()

    with monkeypatch.context() as patch:
        patch.setattr("kedge.files.listing.os.scandir", Entries)
        watched.scan()
    entries = watched.versions.trees._tree(os.fsencode(watched.root)).entries
    assert len(entries) == 5


def test_what_nobody_put_on_record_is_told_again(watched: Watched) -> None:
    root, trees = os.fsencode(watched.root), watched.versions.trees
    (watched.root / "a").write_text("one")
    watched.scan()
    (watched.root / "a").write_text("two")
    first = trees.scan(root, os.environ, 2**30)  # and who looked left
    (watched.root / "b").write_text("new")
    both = trees.scan(root, os.environ, 2**30)
    assert [each.path.rpartition(b"/")[2] for each in both] == [b"a", b"b"]
    assert both[0] == first[0]
    trees.save(root)
    assert watched.scan() == []


def befores(watched: Watched) -> dict[str, State]:
    found = watched.versions.trees.scan(os.fsencode(watched.root), os.environ, 2**30)
    watched.versions.trees.save(os.fsencode(watched.root))
    return {os.fsdecode(each.path.rpartition(b"/")[2]): each.before for each in found}


def test_what_was_ignored_until_the_directory_became_a_repository_is_not_new(watched: Watched) -> None:
    (watched.root / ".ignore").write_text("build\n")  # git has other rules
    (watched.root / "build").mkdir()
    (watched.root / "build/out").write_text("precious")
    watched.scan()
    git(watched.root, "init", "-q")
    (watched.root / "build/out").write_text("changed")
    assert befores(watched) == {"out": UNREADABLE}


def test_an_ignored_file_that_is_added_by_force_is_not_new(watched: Watched) -> None:
    (watched.root / ".gitignore").write_text(".env\n")
    (watched.root / ".env").write_text("precious")
    git(watched.root, "init", "-q")
    watched.scan()
    (watched.root / ".env").write_text("changed")
    (watched.root / "new").write_text("new")
    git(watched.root, "add", "-f", ".env", "new")
    assert befores(watched) == {".env": UNREADABLE, "new": ABSENT}


def test_one_file_under_two_cases_of_its_name_is_not_taken_for_a_new_one(watched: Watched) -> None:
    """As where a file system does not tell them apart: the old name still finds the file."""
    (watched.root / "README").write_text("text")
    watched.scan()
    (watched.root / "readme").hardlink_to(watched.root / "README")
    (watched.root / ".ignore").write_text("/README\n")
    assert watched.scan() == [".ignore"]


def test_a_tree_that_was_too_much_is_tried_again_after_a_while(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    (watched.root / "large").write_bytes(bytes(1000))
    with pytest.raises(CannotScan):
        watched.scan(max_bytes=1000)
    monkeypatch.setattr(versions, "REFUSED_S", -1.0)
    assert watched.scan() == []


def test_of_many_trees_the_one_used_last_keeps_its_place(tmp_path: Path) -> None:
    versions = Versions(tmp_path)
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(name)
        versions.trees.scan(os.fsencode(tmp_path / name), os.environ, 2**30)
        versions.trees.save(os.fsencode(tmp_path / name))
    assert versions.trees.forget_oldest()
    assert not versions.trees.forget_oldest()
    versions.blobs.prune(dict.fromkeys(map(compute_digest, (b"first", b"second")), 1), 0)
    assert (versions.blobs.has(compute_digest(b"first")), versions.blobs.has(compute_digest(b"second"))) == (
        False,
        True,
    )
    versions.close()


def test_a_look_that_ends_after_the_server_left_opens_nothing_again(watched: Watched) -> None:
    watched.scan()
    watched.versions.close()
    with pytest.raises(sqlite3.ProgrammingError):
        watched.scan()


@pytest.mark.parametrize("odd", [{"X": "a\0b"}, {"X": "\ud800"}, {"A=B": "x"}, {"": "x"}])
def test_what_no_process_can_be_given_keeps_nobody_from_looking(watched: Watched, odd: dict[str, str]) -> None:
    assert watched.versions.trees.scan(os.fsencode(watched.root), {**os.environ, **odd}, 2**30) == []
