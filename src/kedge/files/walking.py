"""One walk over a tree: the files and links that are listed, as they are now, and the directories that hold nothing.

No link is followed: a directory is entered only where its parent says that it is one.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator

from kedge.files.tracked import Listing


def walk(root: bytes, listed: Listing) -> Iterator[tuple[bytes, os.stat_result | None]]:
    """Files and links with their status, empty directories with None. Blocks: not for the loop."""
    names: dict[bytes, set[bytes]] = {b"": set()}
    for path in listed.paths:
        parent, _, name = path.rpartition(b"/")
        if parent not in names:
            _add_parents(names, parent)
        names[parent].add(name)
    has_links, left = listed.has_links, [b""]
    while left:
        directory = left.pop()
        wanted, prefix = names[directory], directory + b"/" if directory else b""
        try:
            opened = os.scandir(root + b"/" + directory if directory else root)
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            continue  # gone, or not ours to see
        with opened as entries:
            for entry in entries:
                name = entry.name
                if entry.is_dir(follow_symlinks=False):
                    if prefix + name in names:
                        left.append(prefix + name)
                    elif name != b".git":
                        yield from _hollow(root, prefix + name, has_links=has_links)
                elif name in wanted or (not has_links and entry.is_symlink()):
                    try:
                        status = entry.stat(follow_symlinks=False)
                    except (FileNotFoundError, PermissionError):
                        continue  # this one is gone; the others are not
                    if stat.S_ISREG(status.st_mode) or stat.S_ISLNK(status.st_mode):
                        yield prefix + name, status


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
            with os.scandir(root + b"/" + directory) as entries:
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
