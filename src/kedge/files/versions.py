"""File versions of one data directory: stored contents, and the last scan of each watched tree.

Only one thread scans a tree at a time, so that a change is reported once. Tools record the files they write, so that
the next scan does not attribute them to a command. The last scan survives a restart.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from pathlib import Path

from kedge.files.blobs import Blobs
from kedge.files.listing import CannotScan, list_files
from kedge.files.scan import Difference, Entries, Entry, LastScan, make_entry, scan_tree
from kedge.files.states import DIRECTORY, Observation, decode_state, encode_state

MAX_ROOTS = 16  # trees stored on disk
MAX_IN_MEMORY = 2
REFUSED_S = 3600.0  # how long a tree that could not be scanned is not tried again
DEFAULT_MAX_BYTES = 1024 * 1024 * 1024  # weeks of work on a large project, compressed


class _Tree:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.entries: Entries = {}
        self.scanned_at_ns: int | None = None
        self.has_links: bool | None = None
        self.refused_why: str | None = None
        self.refused_at = 0.0
        self.is_loaded = False
        self.unsaved: dict[bytes, Entry | None] = {}  # None: deleted
        self.unsaved_changes: list[Difference] = []  # returned by `scan`, and not recorded by the caller yet


class Trees:
    """The watched trees. Every call blocks, and may come from any thread."""

    def __init__(self, blobs: Blobs) -> None:
        self._blobs = blobs
        self._trees: dict[bytes, _Tree] = {}
        self._lock = threading.Lock()

    def scan(self, root: bytes, env: Mapping[str, str], max_bytes: int) -> list[Difference]:
        """Return the changes since the last saved scan, and store their contents. The first scan returns none.

        The caller records the changes and then calls `save`. Until then they are returned again, also after a crash.
        Raises `CannotScan`.
        """
        tree = self._tree(root)
        with tree.lock:
            if tree.refused_why is not None:
                raise CannotScan(tree.refused_why)
            self._load(root, tree)
            began_ns = time.time_ns()
            try:
                listed = list_files(root, env)
                # The other half of the room is for older versions.
                last = LastScan(root, tree.entries, tree.scanned_at_ns, tree.has_links)
                result = scan_tree(last, listed, self._blobs, env, max_bytes // 2)
            except CannotScan as error:
                self.stop_watching(root, error.why)
                raise
            tree.unsaved |= dict.fromkeys(tree.entries.keys() - result.entries.keys())
            tree.unsaved |= {path: result.entries[path] for path in result.renewed}
            tree.entries, tree.scanned_at_ns, tree.has_links = result.entries, began_ns, listed.has_links
            tree.unsaved_changes += result.differences
            return list(tree.unsaved_changes)

    def save(self, root: bytes) -> None:
        tree = self._tree(root)
        with tree.lock:
            if tree.scanned_at_ns is not None:
                self._save(root, tree.unsaved, tree.scanned_at_ns)
            tree.unsaved, tree.unsaved_changes = {}, []

    def stop_watching(self, root: bytes, why: str) -> None:
        """Refuse scans for a while. Works during a scan, too, which may hang on a dead disk."""
        tree = _Tree()
        tree.refused_why, tree.refused_at, tree.is_loaded = why, time.monotonic(), True
        with self._lock:
            self._trees[root] = tree
        self._forget(root)

    def record(self, root: bytes, path: bytes, seen: Observation) -> None:
        """Note the state of a file that a tool changed; `save` when the change is recorded."""
        tree = self._tree(root)
        if not path.startswith(root + b"/"):
            return
        inside = path[len(root) + 1 :]
        with tree.lock:
            self._load(root, tree)
            if tree.scanned_at_ns is None:
                return
            if seen.state == DIRECTORY:
                tree.entries[inside] = tree.unsaved[inside] = Entry(b"", DIRECTORY)
            elif seen.status is None or not seen.state.is_stored:
                tree.entries.pop(inside, None)
                tree.unsaved[inside] = None
            else:
                tree.entries[inside] = tree.unsaved[inside] = make_entry(seen, time.time_ns())

    def forget_oldest(self) -> bool:
        """Delete the scan of the tree that was used longest ago, never the last one. Return whether there was one."""
        with self._lock, self._blobs.transaction() as db:
            roots = [root for (root,) in db.execute("SELECT root FROM roots ORDER BY at DESC")]
            if len(roots) < 2 or ((tree := self._trees.get(roots[-1])) is not None and tree.lock.locked()):
                return False
            self._trees.pop(roots[-1], None)
            self._forget(roots[-1])
            return True

    def _tree(self, root: bytes) -> _Tree:
        with self._lock:
            tree = self._trees.pop(root, None)
            if tree is None or (tree.refused_why and time.monotonic() > tree.refused_at + REFUSED_S):
                tree = _Tree()
            self._trees[root] = tree  # keeps the dict ordered by last use
            for old in [key for key in self._trees if self._trees[key].refused_why is None][:-MAX_IN_MEMORY]:
                if not self._trees[old].lock.locked() and not self._trees[old].unsaved:
                    del self._trees[old]
            return tree

    def _load(self, root: bytes, tree: _Tree) -> None:
        if tree.is_loaded:
            return
        with self._blobs.transaction() as db:
            row = db.execute("SELECT at FROM roots WHERE root = ?", (root,)).fetchone()
            if row is not None:
                tree.scanned_at_ns = row[0]
                for path, stamp, state in db.execute("SELECT path, stamp, state FROM trees WHERE root = ?", (root,)):
                    tree.entries[path] = Entry(stamp, decode_state(state))
        tree.is_loaded = True

    def _save(self, root: bytes, unsaved: Mapping[bytes, Entry | None], at_ns: int) -> None:
        with self._blobs.transaction() as db:
            db.execute("INSERT OR REPLACE INTO roots (root, at) VALUES (?, ?)", (root, at_ns))
            db.executemany(
                "INSERT OR REPLACE INTO trees (root, path, stamp, state, digest) VALUES (?, ?, ?, ?, ?)",
                [
                    (root, path, e.stamp, encode_state(e.state), e.state.digest)
                    for path, e in unsaved.items()
                    if e is not None
                ],
            )
            gone = [(root, path) for path, entry in unsaved.items() if entry is None]
            db.executemany("DELETE FROM trees WHERE root = ? AND path = ?", gone)
            for (old,) in db.execute(
                "SELECT root FROM roots ORDER BY at DESC LIMIT -1 OFFSET ?", (MAX_ROOTS,)
            ).fetchall():
                self._forget(old)

    def _forget(self, root: bytes) -> None:
        with self._blobs.transaction() as db:
            db.execute("DELETE FROM roots WHERE root = ?", (root,))
            db.execute("DELETE FROM trees WHERE root = ?", (root,))


class Versions:
    """Blobs and trees in the store's directory; with None in memory, until the process ends."""

    def __init__(self, directory: Path | None) -> None:
        self.blobs = Blobs(directory)
        self.trees = Trees(self.blobs)

    def close(self) -> None:
        self.blobs.close()
