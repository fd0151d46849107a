"""The trees that are watched: what each held when it was last looked at, also after a restart.

Whoever looks at a tree does so alone, so that a change is seen once. What a tool writes is noted here, so that the next
look does not take it for the work of a command.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping

from kedge.files.blobs import Blobs
from kedge.files.scanning import Difference, Entries, Entry, Seen, entry_of, look
from kedge.files.states import Observed, decode, encode
from kedge.files.tracked import Uncovered, tracked

MAX_ROOTS = 16  # whose trees are remembered on disk
MAX_IN_MEMORY = 2


class _Tree:
    def __init__(self) -> None:
        self.one_by_one = threading.Lock()
        self.entries: Entries = {}
        self.looked_at_ns: int | None = None
        self.uncovered: str | None = None
        self.is_loaded = False
        self.unsaved: dict[bytes, Entry | None] = {}  # None: it is gone


class Trees:
    """For threads: every call blocks."""

    def __init__(self, blobs: Blobs) -> None:
        self._blobs = blobs
        self._trees: dict[bytes, _Tree] = {}
        self._one_by_one = threading.Lock()

    def look(self, root: bytes, env: Mapping[str, str], max_bytes: int) -> list[Difference]:
        """What changed since the last look, contents kept; nothing at the first one. Raises `Uncovered`.

        `save` when it is on record: until then, whoever comes after a crash sees it again.
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
                seen = look(Seen(root, tree.entries, tree.looked_at_ns), listed, self._blobs, env, max_bytes // 2)
            except Uncovered as error:
                tree.uncovered = error.why
                tree.entries, tree.unsaved = {}, {}
                self._forget(root)
                raise
            tree.unsaved |= dict.fromkeys(tree.entries.keys() - seen.entries.keys())
            tree.unsaved |= {path: seen.entries[path] for path in seen.renewed}
            tree.entries, tree.looked_at_ns = seen.entries, began_ns
            return seen.differences

    def save(self, root: bytes) -> None:
        tree = self._tree(root)
        with tree.one_by_one:
            if tree.looked_at_ns is not None:
                self._save(root, tree.unsaved, tree.looked_at_ns)
            tree.unsaved = {}

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
            if seen.status is None or not seen.state.is_kept:
                tree.entries.pop(inside, None)
                tree.unsaved[inside] = None
            else:
                tree.entries[inside] = tree.unsaved[inside] = entry_of(seen, time.time_ns())

    def _tree(self, root: bytes) -> _Tree:
        with self._one_by_one:
            tree = self._trees.pop(root, None) or _Tree()
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
