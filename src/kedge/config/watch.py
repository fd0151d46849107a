"""Which directories must be watched to learn that a file came, went or changed, also behind links."""

from __future__ import annotations

import stat
from pathlib import Path

MAX_LINKS = 40  # as the kernel; more are a loop

# In this directory, what happens to this name may change the file.
Point = tuple[Path, str]


def points(path: Path) -> set[Point]:
    """The places whose change can change what `path` is: the file itself, each link on the way, or what is missing."""
    found: set[Point] = set()
    here, rest, links = Path(path.anchor), list(path.parts[1:]), 0
    while rest:
        name = rest.pop(0)
        if name == "..":
            here = here.parent
            continue
        target = here / name
        try:
            mode = target.lstat().st_mode
        except OSError:
            return found | {(here, name)}  # it, or what it is in, may come
        if stat.S_ISLNK(mode):
            found.add((here, name))
            links += 1
            if links > MAX_LINKS:
                return found
            to = target.readlink()
            rest = [*(to.parts[1:] if to.is_absolute() else to.parts), *rest]
            here = Path(to.anchor) if to.is_absolute() else here
        elif rest and stat.S_ISDIR(mode):
            here = target
        else:
            return found | {(here, name)}
    return found
