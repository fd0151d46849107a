"""What changed in a tree since we last looked: one walk, and a look into those files only whose stamp is another.

A stamp that is as young as the look itself proves nothing: the file may be written again in the same tick of the clock,
so such a file is read again the next time.
"""

from __future__ import annotations

import contextlib
import os
import stat
import struct
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from kedge.files import git_objects
from kedge.files.blobs import Blobs
from kedge.files.listing import Listing, Uncovered, walk
from kedge.files.safe_open import PathChanged, open_directory
from kedge.files.states import (
    ABSENT,
    DIRECTORY,
    MAX_KEPT_BYTES,
    UNSEEN,
    Observed,
    State,
    digest_of,
    observe,
    observe_below,
)

# The coarsest clock of a file system in use (FAT) ticks every two seconds.
TICK_NS = 2_000_000_000
READ_S = 20.0  # for the contents of one look; a tree that takes longer is not waited for again
BATCH_BYTES = 8 * 1024 * 1024
_IGNORE_FILES = frozenset({b".gitignore", b".ignore", b".rgignore", b".kedgeignore"})

_STAMP = struct.Struct(">qqqqq")


class Entry(NamedTuple):
    stamp: bytes | None
    state: State


Entries = dict[bytes, Entry]


class Difference(NamedTuple):
    """`path` is absolute."""

    path: bytes
    before: State
    after: State


class Seen(NamedTuple):
    """What a tree held at the last look, and when that began; None: there was none. `has_links` is its listing's."""

    root: bytes
    entries: Entries
    looked_at_ns: int | None
    has_links: bool | None = None


class Looked(NamedTuple):
    """`differences` is empty for the first look: nobody knows what was before."""

    differences: list[Difference]
    entries: Entries  # as they are now
    renewed: list[bytes]  # paths whose entry is another


def look(tree: Seen, listed: Listing, blobs: Blobs, env: Mapping[str, str], max_bytes: int) -> Looked:
    """Blocks: not for the loop. Raises `Uncovered`."""
    with contextlib.closing(_Reader(tree.root, blobs, max_bytes)) as reader:
        return _look(tree, listed, reader, blobs, env)


def _look(tree: Seen, listed: Listing, reader: _Reader, blobs: Blobs, env: Mapping[str, str]) -> Looked:
    root, known = tree.root, tree.entries
    is_new = len(listed.paths) - len(known) > git_objects.MIN_FILES
    indexed = git_objects.index_of(root, env, listed.paths) if is_new and listed.has_links else {}
    now: Entries = {}
    renewed: list[bytes] = []
    for path, status in walk(root, listed):
        if status is None:
            now[path] = Entry(b"", DIRECTORY)
        else:
            stamp, entry = _stamp_of(status), known.get(path)
            if entry is not None and entry.stamp == stamp:
                now[path] = entry
                continue
            clean = indexed.get(path)
            if clean is not None and clean.is_it(status) and path not in known and status.st_size <= MAX_KEPT_BYTES:
                state = State("file", git_objects.PREFIX + clean.sha, stat.S_IMODE(status.st_mode), status.st_size)
                now[path] = Entry(None if reader.is_young(status) else stamp, state)
            else:
                seen = reader.read(path)
                if seen.state.kind == "special" or seen.status is None:
                    continue
                now[path] = Entry(None if reader.is_young(seen.status) else _stamp_of(seen.status), seen.state)
        if now[path] != known.get(path):
            renewed.append(path)
    gone = {path: reader.read_below(path).state for path in known.keys() - now.keys()}
    reader.flush()
    if tree.looked_at_ns is None:
        return Looked([], now, renewed)
    changed = [path for path in renewed if path in known and known[path].state != now[path].state]
    has_new_rules = tree.has_links not in (None, listed.has_links) or any(
        path.rpartition(b"/")[2] in _IGNORE_FILES and path in known for path in [*changed, *gone]
    )
    found = [(path, known[path].state, state) for path, state in gone.items()]
    found += [(path, known[path].state, now[path].state) for path in changed]
    news = [path for path in renewed if path not in known]
    found += _appeared(tree, now, news, gone, env, has_new_rules=has_new_rules)
    own = _kept(root, env, blobs, [(old, new) for _, old, new in found if _is_of_git(old)])
    differences = [Difference(_join(root, path), own.get(old, old), new) for path, old, new in found]
    return Looked([each for each in differences if each.before != each.after], now, renewed)


def _appeared(
    tree: Seen,
    now: Entries,
    paths: Sequence[bytes],
    gone: Mapping[bytes, State],
    env: Mapping[str, str],
    *,
    has_new_rules: bool,
) -> Iterator[tuple[bytes, State, State]]:
    """What was in the places of files that were not known. What only comes into sight is left out: it did not change.

    A file that was moved alone has a new time; one that was moved with its directory has not.
    """
    root, known, since_ns = tree.root, tree.entries, tree.looked_at_ns or 0
    moved = {known[path].stamp for path, state in gone.items() if state != known[path].state} - {None}
    folded = {path.lower(): path for path in gone}
    old = {path for path in paths if now[path].state.kind != "directory" and _is_older(root, path, since_ns)}
    places = _directories_of(known) if old else set[bytes]()
    fresh = [path for path in paths if path not in old and now[path].state.kind != "directory"]
    unseen = set(fresh) if has_new_rules else git_objects.ignored(root, env, fresh)
    for path in paths:
        twin = folded.get(path.lower())
        if twin is not None and _is_same(_join(root, path), _join(root, twin)):
            continue  # one file, where names differ in more than their case; to remove it would be to lose it
        if path in old and now[path].stamp not in moved:
            top = next((each for each in _parents(path) if each not in places), None)
            if has_new_rules or top is None or _is_older(root, top, since_ns):
                continue
        yield path, UNSEEN if path in unseen else ABSENT, now[path].state


def _directories_of(known: Entries) -> set[bytes]:
    found = {path for path, entry in known.items() if entry.state.kind == "directory"}
    for path in known:
        while (path := path.rpartition(b"/")[0]) and path not in found:
            found.add(path)
    return found


def _parents(path: bytes) -> Iterator[bytes]:
    """From the root on, without it."""
    at = -1
    while (at := path.find(b"/", at + 1)) >= 0:
        yield path[:at]


def _is_same(path: bytes, other: bytes) -> bool:
    try:
        return os.path.samestat(os.lstat(path), os.lstat(other))
    except OSError:
        return False


def _is_older(root: bytes, path: bytes, since_ns: int) -> bool:
    """Whether nothing was done to it since then: renaming, too, is told by its status."""
    try:
        return os.lstat(_join(root, path)).st_ctime_ns < since_ns - TICK_NS
    except OSError:
        return False


def _kept(root: bytes, env: Mapping[str, str], blobs: Blobs, changed: list[tuple[State, State]]) -> dict[State, State]:
    """States that name an object of git, as those of a content that is kept here; each with what came after it."""
    own: dict[State, State] = {}
    for old, new in changed:
        # One that was only touched: it is here already.
        if (
            old.size == new.size
            and new.kind == "file"
            and _sha(old) == git_objects.sha_of(blobs.get(new.digest) or b"")
        ):
            own[old] = State("file", new.digest, old.mode, old.size)
    left = list({old for old, _ in changed if old not in own})
    while left:
        some, size = [left.pop()], 0
        while left and (size := size + some[-1].size) < BATCH_BYTES:
            some.append(left.pop())
        contents = git_objects.objects(root, env, map(_sha, some))
        blobs.put(contents.values())
        for state in some:
            data = contents.get(_sha(state))
            own[state] = UNSEEN if data is None else State("file", digest_of(data), state.mode, len(data))
    return own


def _is_of_git(state: State) -> bool:
    return state.digest.startswith(git_objects.PREFIX)


def _sha(state: State) -> str:
    return state.digest.removeprefix(git_objects.PREFIX)


def entry_of(seen: Observed, looked_at_ns: int) -> Entry:
    """What is known of a file that was read outside of a look."""
    assert seen.status is not None
    return Entry(None if _is_young(seen.status, looked_at_ns) else _stamp_of(seen.status), seen.state)


class _Reader:
    """Reads contents and keeps them, in large bites."""

    def __init__(self, root: bytes, blobs: Blobs, max_bytes: int) -> None:
        self._root = root
        self._blobs = blobs
        self._left = max_bytes
        self._began_ns = time.time_ns()
        self._deadline = time.monotonic() + READ_S
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0
        self._open = contextlib.ExitStack()
        self._directory: tuple[bytes, int] | None = None

    def read(self, path: bytes) -> Observed:
        """One that the walk found; no link is followed that took the place of a directory since."""
        directory, _, name = path.rpartition(b"/")
        try:
            return self._kept(observe(name, self._opened(directory)))
        except (FileNotFoundError, NotADirectoryError, PathChanged):
            return Observed(ABSENT)
        except PermissionError:
            return Observed(UNSEEN)

    def close(self) -> None:
        self._open.close()
        self._directory = None

    def _opened(self, directory: bytes) -> int:
        """The walk goes from directory to directory: one of them is open at a time."""
        if self._directory is None or self._directory[0] != directory:
            self.close()
            at = self._open.enter_context(open_directory(_join(self._root, directory), top=self._root))
            self._directory = directory, at
        return self._directory[1]

    def _kept(self, seen: Observed) -> Observed:
        if seen.data is not None:
            self._waiting.append(seen.data)
            self._waiting_bytes += len(seen.data)
            self._left -= len(seen.data)
            if self._left < 0:
                raise Uncovered("its files are more than what may be kept (files.max_bytes)")
            if self._waiting_bytes > BATCH_BYTES or len(self._waiting) > 2_000:
                self.flush()
        return seen

    def read_below(self, path: bytes) -> Observed:
        """One that was not found on the walk."""
        return self._kept(observe_below(self._root, _join(self._root, path)))

    def flush(self) -> None:
        self._blobs.put(self._waiting)
        self._waiting, self._waiting_bytes = [], 0
        if time.monotonic() > self._deadline:
            raise Uncovered(f"reading its files takes over {READ_S:.0f} s")

    def is_young(self, status: os.stat_result) -> bool:
        return _is_young(status, self._began_ns)


def _is_young(status: os.stat_result, looked_at_ns: int) -> bool:
    return max(status.st_mtime_ns, status.st_ctime_ns) > looked_at_ns - TICK_NS


def _stamp_of(status: os.stat_result) -> bytes:
    return _STAMP.pack(status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_mode)


def _join(root: bytes, path: bytes) -> bytes:
    return root + b"/" + path
