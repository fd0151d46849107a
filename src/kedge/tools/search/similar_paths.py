"""Existing paths that are similar to a missing one, for "did you mean"."""

from __future__ import annotations

import heapq
import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from kedge.files.diffs import BoundedMatcher, TooMuchWork
from kedge.files.safe_open import open_directory

MAX_PATHS = 3
_MAX_ENTRIES = 5_000  # of a larger tree only a part is searched
_MAX_S = 0.25  # for a slow disk
_MIN_RATIO = 0.6
_MAX_STEPS = 1_000_000  # of all comparisons: a fifth of a second
_SKIPPED = frozenset({".git", "node_modules", "__pycache__", ".venv", "venv", "target", ".hg", ".svn"})


def similar_paths(path: Path, workspace: Path) -> list[Path]:
    """Return up to three: first from the same directory, then with the same or a similar name in the workspace."""
    found = [workspace / str(path).lstrip("/")]  # a workspace path written as an absolute one
    found += [path.parent / name for name in _find_similar(path.name, _list_names(path.parent))]
    if len([one for one in found if _exists(one)]) < MAX_PATHS:
        tree = _list_tree(workspace)
        found += [one for one in tree if one.name.lower() == path.name.lower()]
        alike = set(_find_similar(path.name, sorted({one.name for one in tree})))
        found += [one for one in tree if one.name in alike]
    return [one for one in dict.fromkeys(found) if one != path and _exists(one)][:MAX_PATHS]


def _exists(path: Path) -> bool:
    """Return whether a path exists, without following links: names behind a link must not be revealed."""
    try:
        with open_directory(path.parent) as at:
            os.stat(path.name, dir_fd=at, follow_symlinks=False)
    except OSError:
        return False
    return True


def _find_similar(name: str, names: list[str]) -> list[str]:
    """Return the most similar names first, ignoring case."""
    by_lower: dict[str, list[str]] = {}
    for one in names:
        by_lower.setdefault(one.lower(), []).append(one)
    nearest = heapq.nlargest(MAX_PATHS, _compare(name.lower(), by_lower))
    return [one for _, lower in nearest for one in by_lower[lower]]


def _compare(name: str, names: Iterable[str]) -> Iterator[tuple[float, str]]:
    """Yield (ratio, name) of similar names, until `_MAX_STEPS`."""
    matcher = BoundedMatcher(None, "", name)
    matcher.max_steps = _MAX_STEPS
    try:
        for one in names:
            matcher.set_seq1(one)
            if matcher.real_quick_ratio() >= _MIN_RATIO and matcher.quick_ratio() >= _MIN_RATIO:
                ratio = matcher.ratio()
                if ratio >= _MIN_RATIO:
                    yield ratio, one
    except TooMuchWork:
        pass


def _list_names(directory: Path) -> list[str]:
    try:
        with os.scandir(directory) as entries:
            return sorted(entry.name for entry, _ in zip(entries, range(_MAX_ENTRIES), strict=False))
    except OSError:
        return []


def _list_tree(root: Path) -> list[Path]:
    """Return files of a tree within the bounds, nearest to the root first."""
    deadline = time.monotonic() + _MAX_S
    found: list[Path] = []
    pending = [root]
    visited = 0
    while pending and visited < _MAX_ENTRIES and time.monotonic() < deadline:
        directory = pending.pop(0)
        try:
            with os.scandir(directory) as entries:
                for entry in entries:
                    visited += 1
                    if entry.is_dir(follow_symlinks=False):
                        if entry.name not in _SKIPPED:
                            pending.append(directory / entry.name)
                    else:
                        found.append(directory / entry.name)
                    if visited >= _MAX_ENTRIES:
                        break
        except OSError:
            continue
    return sorted(found, key=lambda path: (len(path.parts), str(path)))
