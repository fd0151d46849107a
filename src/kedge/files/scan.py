"""Changes in a tree since the last scan: one walk, which reads only files whose stamp (size, times, inode) changed.

A stamp as young as the scan proves nothing, because the file may be written again in the same clock tick. It is not
stored, so that the file is read again at the next scan.
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
from kedge.files.listing import CannotScan, Listing, walk
from kedge.files.safe_open import PathChanged, open_directory
from kedge.files.states import (
    ABSENT,
    DIRECTORY,
    MAX_STORED_BYTES,
    UNREADABLE,
    Observation,
    State,
    compute_digest,
    observe,
    observe_below,
)

# The coarsest file system clock in use (FAT).
TICK_NS = 2_000_000_000
READ_S = 20.0  # to read the contents of one scan
BATCH_BYTES = 8 * 1024 * 1024
_IGNORE_FILES = frozenset({b".gitignore", b".ignore", b".rgignore", b".kedgeignore"})

_STAMP = struct.Struct(">qqqqq")


class Entry(NamedTuple):
    stamp: bytes | None
    state: State


Entries = dict[bytes, Entry]


class Difference(NamedTuple):
    """A changed path (absolute)."""

    path: bytes
    before: State
    after: State


class LastScan(NamedTuple):
    root: bytes
    entries: Entries
    scanned_at_ns: int | None  # when it began; None: there was no scan yet
    has_links: bool | None = None  # `Listing.has_links`


class ScanResult(NamedTuple):
    differences: list[Difference]  # empty for the first scan
    entries: Entries
    renewed: list[bytes]  # paths whose entry is new or changed


def scan_tree(tree: LastScan, listed: Listing, blobs: Blobs, env: Mapping[str, str], max_bytes: int) -> ScanResult:
    """Compare a tree with its last scan, and store new contents. Blocks. Raises `CannotScan`."""
    with contextlib.closing(_Reader(tree.root, blobs, max_bytes)) as reader:
        return _scan_tree(tree, listed, reader, blobs, env)


def _scan_tree(tree: LastScan, listed: Listing, reader: _Reader, blobs: Blobs, env: Mapping[str, str]) -> ScanResult:
    root, known = tree.root, tree.entries
    is_new = len(listed.paths) - len(known) > git_objects.MIN_FILES
    indexed = git_objects.read_index(root, env, listed.paths) if is_new and listed.has_links else {}
    now: Entries = {}
    renewed: list[bytes] = []
    for path, status in walk(root, listed):
        if status is None:
            now[path] = Entry(b"", DIRECTORY)
        else:
            stamp, entry = _make_stamp(status), known.get(path)
            if entry is not None and entry.stamp == stamp:
                now[path] = entry
                continue
            clean = indexed.get(path)
            if clean is not None and clean.matches(status) and path not in known and status.st_size <= MAX_STORED_BYTES:
                state = State("file", git_objects.PREFIX + clean.sha, stat.S_IMODE(status.st_mode), status.st_size)
                now[path] = Entry(None if reader.is_young(status) else stamp, state)
            else:
                seen = reader.read(path)
                if seen.state.kind == "special" or seen.status is None:
                    continue
                now[path] = Entry(None if reader.is_young(seen.status) else _make_stamp(seen.status), seen.state)
        if now[path] != known.get(path):
            renewed.append(path)
    gone = {path: reader.read_below(path).state for path in known.keys() - now.keys()}
    reader.flush()
    if tree.scanned_at_ns is None:
        return ScanResult([], now, renewed)
    changed = [path for path in renewed if path in known and known[path].state != now[path].state]
    has_new_rules = tree.has_links not in (None, listed.has_links) or any(
        path.rpartition(b"/")[2] in _IGNORE_FILES and path in known for path in [*changed, *gone]
    )
    found = [(path, known[path].state, state) for path, state in gone.items()]
    found += [(path, known[path].state, now[path].state) for path in changed]
    news = [path for path in renewed if path not in known]
    found += _find_appeared(tree, now, news, gone, env, has_new_rules=has_new_rules)
    own = _store_git_contents(
        root, env, blobs, [(old, new) for _, old, new in found if old.digest.startswith(git_objects.PREFIX)]
    )
    differences = [Difference(_join(root, path), own.get(old, old), new) for path, old, new in found]
    return ScanResult([each for each in differences if each.before != each.after], now, renewed)


def _find_appeared(
    tree: LastScan,
    now: Entries,
    paths: Sequence[bytes],
    gone: Mapping[bytes, State],
    env: Mapping[str, str],
    *,
    has_new_rules: bool,
) -> Iterator[tuple[bytes, State, State]]:
    """Yield (path, state before, state now) of paths that were not known.

    Leaves out files that only became visible, because an ignore rule changed: they did not change. A file that was
    moved has a new ctime, unless it was moved with its directory.
    """
    root, known, since_ns = tree.root, tree.entries, tree.scanned_at_ns or 0
    moved = {known[path].stamp for path, state in gone.items() if state != known[path].state} - {None}
    folded = {path.lower(): path for path in gone}
    old = {path for path in paths if now[path].state.kind != "directory" and _is_older(root, path, since_ns)}
    directories = _list_directories(known) if old else set[bytes]()
    fresh = [path for path in paths if path not in old and now[path].state.kind != "directory"]
    unknown_before = set(fresh) if has_new_rules else git_objects.find_ignored(root, env, fresh)
    for path in paths:
        twin = folded.get(path.lower())
        if twin is not None and _is_same(_join(root, path), _join(root, twin)):
            continue  # renamed in case only, on a case-insensitive file system: removing one would remove both
        if path in old and now[path].stamp not in moved:
            top = next((each for each in _parents(path) if each not in directories), None)
            if has_new_rules or top is None or _is_older(root, top, since_ns):
                continue
        yield path, UNREADABLE if path in unknown_before else ABSENT, now[path].state


def _list_directories(known: Entries) -> set[bytes]:
    found = {path for path, entry in known.items() if entry.state.kind == "directory"}
    for path in known:
        while (path := path.rpartition(b"/")[0]) and path not in found:
            found.add(path)
    return found


def _parents(path: bytes) -> Iterator[bytes]:
    """Yield the directories above a path, the topmost first."""
    at = -1
    while (at := path.find(b"/", at + 1)) >= 0:
        yield path[:at]


def _is_same(path: bytes, other: bytes) -> bool:
    try:
        return os.path.samestat(os.lstat(path), os.lstat(other))
    except OSError:
        return False


def _is_older(root: bytes, path: bytes, since_ns: int) -> bool:
    """Return whether a path was neither written nor renamed since then."""
    try:
        return os.lstat(_join(root, path)).st_ctime_ns < since_ns - TICK_NS
    except OSError:
        return False


def _store_git_contents(
    root: bytes, env: Mapping[str, str], blobs: Blobs, changed: list[tuple[State, State]]
) -> dict[State, State]:
    """Map states that refer to a git object to states whose content is in `blobs`. `changed` has (before, after)."""
    own: dict[State, State] = {}
    for old, new in changed:
        # The file was only touched: its content is stored already.
        if (
            old.size == new.size
            and new.kind == "file"
            and _sha(old) == git_objects.compute_sha(blobs.get(new.digest) or b"")
        ):
            own[old] = State("file", new.digest, old.mode, old.size)
    left = list({old for old, _ in changed if old not in own})
    while left:
        some, size = [left.pop()], 0
        while left and (size := size + some[-1].size) < BATCH_BYTES:
            some.append(left.pop())
        contents = git_objects.read_objects(root, env, map(_sha, some))
        blobs.put(contents.values())
        for state in some:
            data = contents.get(_sha(state))
            own[state] = UNREADABLE if data is None else State("file", compute_digest(data), state.mode, len(data))
    return own


def _sha(state: State) -> str:
    return state.digest.removeprefix(git_objects.PREFIX)


def make_entry(seen: Observation, scanned_at_ns: int) -> Entry:
    assert seen.status is not None
    return Entry(None if _is_young(seen.status, scanned_at_ns) else _make_stamp(seen.status), seen.state)


class _Reader:
    """Reads contents and stores them in large batches."""

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

    def read(self, path: bytes) -> Observation:
        """Read a path that the walk found, without following a link that replaced a directory since."""
        directory, _, name = path.rpartition(b"/")
        try:
            return self._store(observe(name, self._open_directory(directory)))
        except (FileNotFoundError, NotADirectoryError, PathChanged):
            return Observation(ABSENT)
        except PermissionError:
            return Observation(UNREADABLE)

    def close(self) -> None:
        self._open.close()
        self._directory = None

    def _open_directory(self, directory: bytes) -> int:
        """Open a directory. The walk goes from one to the next, so only the last one stays open."""
        if self._directory is None or self._directory[0] != directory:
            self.close()
            at = self._open.enter_context(open_directory(_join(self._root, directory), top=self._root))
            self._directory = directory, at
        return self._directory[1]

    def _store(self, seen: Observation) -> Observation:
        if seen.data is not None:
            self._waiting.append(seen.data)
            self._waiting_bytes += len(seen.data)
            self._left -= len(seen.data)
            if self._left < 0:
                raise CannotScan("its files take more room than files.max_bytes allows")
            if self._waiting_bytes > BATCH_BYTES or len(self._waiting) > 2_000:
                self.flush()
        return seen

    def read_below(self, path: bytes) -> Observation:
        """Read a path that the walk did not find."""
        return self._store(observe_below(self._root, _join(self._root, path)))

    def flush(self) -> None:
        self._blobs.put(self._waiting)
        self._waiting, self._waiting_bytes = [], 0
        if time.monotonic() > self._deadline:
            raise CannotScan(f"reading its files takes over {READ_S:.0f} s")

    def is_young(self, status: os.stat_result) -> bool:
        return _is_young(status, self._began_ns)


def _is_young(status: os.stat_result, scanned_at_ns: int) -> bool:
    return max(status.st_mtime_ns, status.st_ctime_ns) > scanned_at_ns - TICK_NS


def _make_stamp(status: os.stat_result) -> bytes:
    return _STAMP.pack(status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_mode)


def _join(root: bytes, path: bytes) -> bytes:
    return root + b"/" + path
