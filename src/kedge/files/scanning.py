"""What changed in a tree since we last looked: one walk, and a look into those files only whose stamp is another.

A stamp that is as young as the look itself proves nothing: the file may be written again in the same tick of the clock,
so such a file is read again the next time.
"""

from __future__ import annotations

import os
import stat
import struct
import time
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from kedge.files import git_objects
from kedge.files.blobs import Blobs
from kedge.files.states import ABSENT, DIRECTORY, Observed, State, digest_of, observe
from kedge.files.tracked import Listing, Uncovered

# The coarsest clock of a file system in use (FAT) ticks every two seconds.
TICK_NS = 2_000_000_000
READ_S = 20.0  # for the contents of one look; a tree that takes longer is not waited for again
BATCH_BYTES = 8 * 1024 * 1024
_IGNORE_FILES = frozenset({b".gitignore", b".ignore", b".rgignore", b".kedgeignore"})
UNSEEN = State("special", "unseen")  # it was there before, and nobody looked

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
    """What a tree held at the last look, and when that began; None: there was none."""

    root: bytes
    entries: Entries
    looked_at_ns: int | None


class Looked(NamedTuple):
    """`differences` is empty for the first look: nobody knows what was before."""

    differences: list[Difference]
    entries: Entries  # as they are now
    renewed: list[bytes]  # paths whose entry is another


def look(tree: Seen, listed: Listing, blobs: Blobs, env: Mapping[str, str], max_bytes: int) -> Looked:
    """Blocks: not for the loop. Raises `Uncovered`."""
    root, known = tree.root, tree.entries
    reader = _Reader(root, blobs, max_bytes)
    is_new = len(listed.paths) - len(known) > git_objects.MIN_FILES
    indexed = git_objects.index_of(root, env, listed.paths) if is_new and listed.has_links else {}
    now: Entries = {}
    renewed: list[bytes] = []
    for path, status in _walk(root, listed):
        if status is None:
            now[path] = Entry(b"", DIRECTORY)
        else:
            stamp, entry = _stamp_of(status), known.get(path)
            if entry is not None and entry.stamp == stamp:
                now[path] = entry
                continue
            clean = indexed.get(path)
            if clean is not None and clean.is_it(status) and path not in known:
                state = State("file", git_objects.PREFIX + clean.sha, stat.S_IMODE(status.st_mode), status.st_size)
                now[path] = Entry(None if reader.is_young(status) else stamp, state)
            else:
                seen = reader.read(path)
                if seen.state.kind == "special" or seen.status is None:
                    continue
                now[path] = Entry(None if reader.is_young(seen.status) else _stamp_of(seen.status), seen.state)
        if now[path] != known.get(path):
            renewed.append(path)
    changed = [path for path in renewed if path not in known or known[path].state != now[path].state]
    gone = {path: reader.read(path).state for path in known.keys() - now.keys()}
    reader.flush()
    if tree.looked_at_ns is None:
        return Looked([], now, renewed)
    found = [(path, known[path].state, state) for path, state in gone.items()]
    has_new_rules = any(path.rpartition(b"/")[2] in _IGNORE_FILES and path in known for path in [*changed, *gone])
    for path in changed:
        if path in known:
            before = known[path].state
        elif now[path].state.kind != "directory" and _is_older(root, path, tree.looked_at_ns):
            continue  # it was there before, and only comes into sight now
        else:
            before = UNSEEN if has_new_rules and now[path].state.kind != "directory" else ABSENT
        found.append((path, before, now[path].state))
    own = _kept(root, env, blobs, [(old, new) for _, old, new in found if _is_of_git(old)])
    differences = [Difference(_join(root, path), own.get(old, old), new) for path, old, new in found]
    return Looked([each for each in differences if each.before != each.after], now, renewed)


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
    named = {old: _sha(old) for old, _ in changed if old not in own}
    contents = git_objects.objects(root, env, named.values())
    for state, sha in named.items():
        data = contents.get(sha)
        if data is None or len(data) != state.size:
            own[state] = UNSEEN
        else:
            blobs.put([data])
            own[state] = State("file", digest_of(data), state.mode, len(data))
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

    def read(self, path: bytes) -> Observed:
        seen = observe(_join(self._root, path))
        if seen.data is not None:
            self._waiting.append(seen.data)
            self._waiting_bytes += len(seen.data)
            self._left -= len(seen.data)
            if self._left < 0:
                raise Uncovered("its files are more than what may be kept (files.max_bytes)")
            if self._waiting_bytes > BATCH_BYTES or len(self._waiting) > 2_000:
                self.flush()
        return seen

    def flush(self) -> None:
        self._blobs.put(self._waiting)
        self._waiting, self._waiting_bytes = [], 0
        if time.monotonic() > self._deadline:
            raise Uncovered(f"reading its files takes over {READ_S:.0f} s")

    def is_young(self, status: os.stat_result) -> bool:
        return _is_young(status, self._began_ns)


def _walk(root: bytes, listed: Listing) -> Iterator[tuple[bytes, os.stat_result | None]]:
    """Files and links that are listed, with their status, and directories that hold nothing (None)."""
    names: dict[bytes, set[bytes]] = {b"": set()}
    for path in listed.paths:
        parent, _, name = path.rpartition(b"/")
        if parent not in names:
            _add_parents(names, parent)
        names[parent].add(name)
    for directory, wanted in names.items():
        prefix = directory + b"/" if directory else b""
        try:
            with os.scandir(_join(root, directory) if directory else root) as entries:
                for entry in entries:
                    path = prefix + entry.name
                    if entry.is_dir(follow_symlinks=False):
                        if path not in names and entry.name != b".git":
                            yield from _hollow(root, path, has_links=listed.has_links)
                    elif entry.name in wanted or (not listed.has_links and entry.is_symlink()):
                        status = entry.stat(follow_symlinks=False)
                        if stat.S_ISREG(status.st_mode) or stat.S_ISLNK(status.st_mode):
                            yield path, status
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            continue  # gone, or not ours to see


def _add_parents(names: dict[bytes, set[bytes]], directory: bytes) -> None:
    while directory not in names:
        names[directory] = set()
        directory = directory.rpartition(b"/")[0]


def _hollow(root: bytes, path: bytes, *, has_links: bool) -> list[tuple[bytes, os.stat_result | None]]:
    """The empty directories from here down, if there is nothing but directories: what is ignored is not looked at.

    Where links are not listed, they are found here, too.
    """
    found: list[tuple[bytes, os.stat_result | None]] = []
    left = [path]
    while left:
        directory = left.pop()
        try:
            with os.scandir(_join(root, directory)) as entries:
                is_empty = True
                for entry in entries:
                    is_empty = False
                    if entry.is_dir(follow_symlinks=False):
                        left.append(directory + b"/" + entry.name)
                    elif not has_links and entry.is_symlink():
                        found.append((directory + b"/" + entry.name, entry.stat(follow_symlinks=False)))
                    else:
                        return []
        except OSError:
            return []
        if is_empty:
            found.append((directory, None))
    return found


def _is_older(root: bytes, path: bytes, since_ns: int) -> bool:
    """Whether nothing was done to it since then: renaming, too, is told by its status."""
    try:
        return os.lstat(_join(root, path)).st_ctime_ns < since_ns - TICK_NS
    except OSError:
        return False


def _is_young(status: os.stat_result, looked_at_ns: int) -> bool:
    return max(status.st_mtime_ns, status.st_ctime_ns) > looked_at_ns - TICK_NS


def _stamp_of(status: os.stat_result) -> bytes:
    return _STAMP.pack(status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_mode)


def _join(root: bytes, path: bytes) -> bytes:
    return root + b"/" + path
