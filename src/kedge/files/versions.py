"""The trees that are watched: what each held when it was last looked at, also after a restart.

Whoever looks at a tree does so alone, so that a change is seen once. What a tool writes is noted here, so that the next
look does not take it for the work of a command.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from pathlib import Path

from kedge.files.blobs import Blobs
from kedge.files.listing import Uncovered, tracked
from kedge.files.scan import Difference, Entries, Entry, Seen, entry_of, look
from kedge.files.states import DIRECTORY, Observed, decode, encode

MAX_ROOTS = 16  # whose trees are remembered on disk
MAX_IN_MEMORY = 2
UNCOVERED_S = 3600.0  # so long a tree that was too much is not tried again


class _Tree:
    def __init__(self) -> None:
        self.one_by_one = threading.Lock()
        self.entries: Entries = {}
        self.looked_at_ns: int | None = None
        self.has_links: bool | None = None
        self.uncovered: str | None = None
        self.uncovered_at = 0.0
        self.is_loaded = False
        self.unsaved: dict[bytes, Entry | None] = {}  # None: it is gone
        self.untold: list[Difference] = []  # seen, and not on record yet


class Trees:
    """For threads: every call blocks."""

    def __init__(self, blobs: Blobs) -> None:
        self._blobs = blobs
        self._trees: dict[bytes, _Tree] = {}
        self._one_by_one = threading.Lock()

    def look(self, root: bytes, env: Mapping[str, str], max_bytes: int) -> list[Difference]:
        """What changed since the last look, contents kept; nothing at the first one. Raises `Uncovered`.

        `save` when it is on record: until then, whoever comes after one that left, or after a crash, sees it again.
        """
        tree = self._tree(root)
        with tree.one_by_one:
            if tree.uncovered is not None:
                raise Uncovered(tree.uncovered)
            self._load(root, tree)
            began_ns = time.time_ns()
            try:
                listed = tracked(root, env)
                # Half of the room is for what was: a tree that takes more leaves none for its versions.
                before = Seen(root, tree.entries, tree.looked_at_ns, tree.has_links)
                seen = look(before, listed, self._blobs, env, max_bytes // 2)
            except Uncovered as error:
                self.give_up(root, error.why)
                raise
            tree.unsaved |= dict.fromkeys(tree.entries.keys() - seen.entries.keys())
            tree.unsaved |= {path: seen.entries[path] for path in seen.renewed}
            tree.entries, tree.looked_at_ns, tree.has_links = seen.entries, began_ns, listed.has_links
            tree.untold += seen.differences
            return list(tree.untold)

    def save(self, root: bytes) -> None:
        tree = self._tree(root)
        with tree.one_by_one:
            if tree.looked_at_ns is not None:
                self._save(root, tree.unsaved, tree.looked_at_ns)
            tree.unsaved, tree.untold = {}, []

    def give_up(self, root: bytes, why: str) -> None:
        """Look at it no more, for a while; also while somebody looks, who may never come back from there."""
        tree = _Tree()
        tree.uncovered, tree.uncovered_at, tree.is_loaded = why, time.monotonic(), True
        with self._one_by_one:
            self._trees[root] = tree
        self._forget(root)

    def note(self, root: bytes, path: bytes, seen: Observed) -> None:
        """A tool changed this file; `save` when that is on record."""
        tree = self._tree(root)
        if not path.startswith(root + b"/"):
            return
        inside = path[len(root) + 1 :]
        with tree.one_by_one:
            self._load(root, tree)
            if tree.looked_at_ns is None:
                return
            if seen.state == DIRECTORY:
                tree.entries[inside] = tree.unsaved[inside] = Entry(b"", DIRECTORY)
            elif seen.status is None or not seen.state.is_kept:
                tree.entries.pop(inside, None)
                tree.unsaved[inside] = None
            else:
                tree.entries[inside] = tree.unsaved[inside] = entry_of(seen, time.time_ns())

    def forget_oldest(self) -> bool:
        """Of all trees but the one used last: what they hold now needs no place any more. Whether there was one."""
        with self._one_by_one, self._blobs.transaction() as db:
            roots = [root for (root,) in db.execute("SELECT root FROM roots ORDER BY at DESC")]
            if len(roots) < 2 or ((tree := self._trees.get(roots[-1])) is not None and tree.one_by_one.locked()):
                return False
            self._trees.pop(roots[-1], None)
            self._forget(roots[-1])
            return True

    def _tree(self, root: bytes) -> _Tree:
        with self._one_by_one:
            tree = self._trees.pop(root, None)
            if tree is None or (tree.uncovered and time.monotonic() > tree.uncovered_at + UNCOVERED_S):
                tree = _Tree()
            self._trees[root] = tree  # the last one is the one used last
            for old in [key for key in self._trees if self._trees[key].uncovered is None][:-MAX_IN_MEMORY]:
                if not self._trees[old].one_by_one.locked() and not self._trees[old].unsaved:
                    del self._trees[old]
            return tree

    def _load(self, root: bytes, tree: _Tree) -> None:
        if tree.is_loaded:
            return
        with self._blobs.transaction() as db:
            row = db.execute("SELECT at FROM roots WHERE root = ?", (root,)).fetchone()
            if row is not None:
                tree.looked_at_ns = row[0]
                for path, stamp, state in db.execute("SELECT path, stamp, state FROM trees WHERE root = ?", (root,)):
                    tree.entries[path] = Entry(stamp, decode(state))
        tree.is_loaded = True

    def _save(self, root: bytes, unsaved: Mapping[bytes, Entry | None], at_ns: int) -> None:
        with self._blobs.transaction() as db:
            db.execute("INSERT OR REPLACE INTO roots (root, at) VALUES (?, ?)", (root, at_ns))
            db.executemany(
                "INSERT OR REPLACE INTO trees (root, path, stamp, state, digest) VALUES (?, ?, ?, ?, ?)",
                [
                    (root, path, e.stamp, encode(e.state), e.state.digest)
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


# --- The versions of files of one data directory: their contents, and the trees that are watched.

DEFAULT_MAX_BYTES = 1024 * 1024 * 1024  # weeks of work on a large project, compressed


class Versions:
    """`directory` is the store's; None: they are kept in memory, and end with the process."""

    def __init__(self, directory: Path | None) -> None:
        self.blobs = Blobs(directory)
        self.trees = Trees(self.blobs)

    def close(self) -> None:
        self.blobs.close()
