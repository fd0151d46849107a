"""A control group for each command, where the system lets us make one: nobody leaves it by mere forking (P6, P13).

Its name is the mark of a process group on record, so that the next server finds it, wherever that one runs itself.
Where it cannot be had, commands run without.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

_PREFIX = "kedge-"
_OWN = Path("/proc/self/cgroup")
_MOUNTS = Path("/proc/self/mountinfo")
# A command joins its group at once: one that is empty for longer is left over.
_LEFT_OVER_S = 60.0

_groups: dict[str, Path] = {}  # by mark: those that we made, or found
_over: set[Path] = set()  # their command has ended, but the kernel was not ready to let them go


@functools.cache
def home() -> Path | None:
    """Where we may make groups: below the one we are in ourselves. Tried once."""
    own = _own_group()
    if own is None or not os.access(own / "cgroup.procs", os.W_OK):
        return None
    probe = own / f"{_PREFIX}probe-{os.getpid()}"
    try:
        probe.mkdir()
        probe.rmdir()
    except OSError:
        return None
    return own


def make(mark: str) -> bool:
    """A group for a command, if there can be one."""
    where = home()
    if where is None:
        return False
    group = where / f"{_PREFIX}{mark}"
    try:
        group.mkdir()
    except OSError:
        return False  # there may be too many
    _groups[mark] = group
    return True


def join(mark: str, pid: int) -> None:
    """Put a process into a group; its children are born there. The kernel takes some 10 ms: not for the loop."""
    group = _groups.get(mark)
    if group is not None:
        with contextlib.suppress(OSError):  # it ended meanwhile, or may not after all: then it runs without
            (group / "cgroup.procs").write_bytes(b"%d" % pid)


def limit(mark: str, *, processes: int, memory_bytes: int) -> None:
    """Bound a group as a whole, as far as its controllers were delegated to us: else the files are not there."""
    group = _groups.get(mark)
    if group is None:
        return
    wanted = {
        "pids.max": processes,
        "memory.max": memory_bytes,
        "memory.swap.max": 0,
        "memory.oom.group": 1,
    }
    for name, value in wanted.items():
        with contextlib.suppress(OSError), (group / name).open("r+b", buffering=0) as file:  # never made by opening it
            file.write(b"%d" % value)


def remove_left_over() -> None:
    """A server may die between making a group and putting it on record; another may just have made one."""
    where = home()
    if where is None:
        return
    with contextlib.suppress(OSError):
        for group in where.glob(f"{_PREFIX}*"):
            with contextlib.suppress(OSError):  # there is somebody in it
                if time.time() - group.stat().st_mtime > _LEFT_OVER_S:
                    group.rmdir()


def find(marks: Iterable[str]) -> None:
    """Get to know the groups that another server made, maybe in another place."""
    names = {f"{_PREFIX}{mark}": mark for mark in marks if mark not in _groups}
    mount = _mount()
    if not names or mount is None:
        return
    for directory, below, _ in os.walk(mount[0]):
        _groups.update({names[name]: Path(directory, name) for name in below if name in names})


def is_populated(mark: str) -> bool:
    """Whether anybody lives in a group; quick."""
    group = _groups.get(mark)
    try:
        return group is not None and b"populated 1" in (group / "cgroup.events").read_bytes()
    except OSError:
        return False


def members(mark: str) -> list[int]:
    """Who is in a group, or in one that was made within it."""
    group = _groups.get(mark)
    return [] if group is None else [pid for directory in _tree(group) for pid in _listed(directory)]


def kill(mark: str) -> None:
    """All at once, so that nobody is born meanwhile, also those who may not be signalled; but never ourselves."""
    group = _groups.get(mark)
    if group is not None and os.getpid() not in members(mark):
        with contextlib.suppress(OSError):  # kernels before 5.14 have no such file: there they are killed one by one
            (group / "cgroup.kill").write_bytes(b"1")


def remove(mark: str) -> None:
    """When its command has ended. The last ones to die may hold it for a moment: then the next call removes it."""
    if group := _groups.pop(mark, None):
        _over.add(group)
    _over.difference_update([group for group in _over if _is_removed(group)])


def _is_removed(group: Path) -> bool:
    try:
        for directory in reversed(list(_tree(group))):
            directory.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def _tree(group: Path) -> Iterator[Path]:
    """A group before those within it."""
    for directory, _, _ in os.walk(group):
        yield Path(directory)


def _listed(group: Path) -> list[int]:
    try:
        return [int(pid) for pid in (group / "cgroup.procs").read_bytes().split()]
    except OSError:
        return []


def _own_group() -> Path | None:
    mount = _mount()
    try:
        lines = os.fsdecode(_OWN.read_bytes()).splitlines()
    except OSError:
        return None
    own = next((line.removeprefix("0::") for line in lines if line.startswith("0::")), None)
    if mount is None or own is None:
        return None
    point, root = mount
    if not Path(own).is_relative_to(root) or ".." in Path(own).parts:
        return None  # we are in a group that is not shown here
    return point / Path(own).relative_to(root)


def _mount() -> tuple[Path, Path] | None:
    """Where the groups are shown, and which of them is the topmost there."""
    try:
        lines = os.fsdecode(_MOUNTS.read_bytes()).splitlines()
    except OSError:
        return None
    for line in lines:
        place, _, kind = line.partition(" - ")
        if kind.startswith("cgroup2 "):
            root, point = map(_unescaped, place.split(" ")[3:5])
            return Path(point), Path(root)
    return None


def _unescaped(path: str) -> str:
    """Blanks and the like are octal numbers in a list of mounts."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), path)
