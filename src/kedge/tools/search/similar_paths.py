"""Paths that look like one that is not there: what a model that guessed most likely meant."""

from __future__ import annotations

import heapq
import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from kedge.files.diffs import BoundedMatcher, TooMuchWork
from kedge.files.safe_open import open_directory

MOST = 3
_LOOKED_AT = 5_000  # entries; a larger tree is looked at in part
_LOOKED_S = 0.25  # on a slow disk even those may take long
_ALIKE = 0.6
_MAX_STEPS = 1_000_000  # of all comparisons: a fifth of a second. Names of ordinary files take a hundredth of it
_SKIPPED = frozenset({".git", "node_modules", "__pycache__", ".venv", "venv", "target", ".hg", ".svn"})


def similar_paths(path: Path, workspace: Path) -> list[Path]:
    """Up to three: in the same directory first, then by the same name elsewhere in the workspace."""
    found = [workspace / str(path).lstrip("/")]  # a path from the workspace's root, written as if from the machine's
    found += [path.parent / name for name in _alike(path.name, _names(path.parent))]
    if len([one for one in found if _is_there(one)]) < MOST:
        tree = _tree(workspace)
        found += [one for one in tree if one.name.lower() == path.name.lower()]
        alike = set(_alike(path.name, sorted({one.name for one in tree})))
        found += [one for one in tree if one.name in alike]
    return [one for one in dict.fromkeys(found) if one != path and _is_there(one)][:MOST]


def _is_there(path: Path) -> bool:
    """A link is not followed on the way: names of what is behind it are not told."""
    try:
        with open_directory(path.parent) as at:
            os.stat(path.name, dir_fd=at, follow_symlinks=False)
    except OSError:
        return False
    return True


def _alike(name: str, names: list[str]) -> list[str]:
    """The nearest first; big and small letters are no difference."""
    by_lower: dict[str, list[str]] = {}
    for one in names:
        by_lower.setdefault(one.lower(), []).append(one)
    nearest = heapq.nlargest(MOST, _ratios(name.lower(), by_lower))
    return [one for _, lower in nearest for one in by_lower[lower]]


def _ratios(name: str, names: Iterable[str]) -> Iterator[tuple[float, str]]:
    """Those that are alike, and how much; those that were compared until it took too long."""
    matcher = BoundedMatcher(None, "", name)
    matcher.max_steps = _MAX_STEPS
    try:
        for one in names:
            matcher.set_seq1(one)
            if matcher.real_quick_ratio() >= _ALIKE and matcher.quick_ratio() >= _ALIKE:
                ratio = matcher.ratio()
                if ratio >= _ALIKE:
                    yield ratio, one
    except TooMuchWork:
        pass


def _names(directory: Path) -> list[str]:
    try:
        with os.scandir(directory) as entries:
            return sorted(entry.name for entry, _ in zip(entries, range(_LOOKED_AT), strict=False))
    except OSError:
        return []


def _tree(root: Path) -> list[Path]:
    """The files of a tree, as many as may be looked at, nearest to the root first."""
    deadline = time.monotonic() + _LOOKED_S
    found: list[Path] = []
    due = [root]
    looked = 0
    while due and looked < _LOOKED_AT and time.monotonic() < deadline:
        directory = due.pop(0)
        try:
            with os.scandir(directory) as entries:
                for entry in entries:
                    looked += 1
                    if entry.is_dir(follow_symlinks=False):
                        if entry.name not in _SKIPPED:
                            due.append(directory / entry.name)
                    else:
                        found.append(directory / entry.name)
                    if looked >= _LOOKED_AT:
                        break
        except OSError:
            continue
    return sorted(found, key=lambda path: (len(path.parts), str(path)))
