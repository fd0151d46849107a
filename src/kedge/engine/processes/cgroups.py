"""A control group for each command, where the system allows it: a process cannot leave it by forking (P6, P13).

Its name is the mark of a recorded process group, so that the next server finds it, whatever group that one runs in.
Where none can be created, commands run without.
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
# A command joins its group at once: a group that is empty for longer is unused.
_UNUSED_S = 60.0

_groups: dict[str, Path] = {}  # by mark: groups that we created or found
_to_remove: set[Path] = set()  # their command has ended, but the kernel did not remove them yet


@functools.cache
def home() -> Path | None:
    """Return the group below which we may create groups: our own. Tried once."""
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


def create(mark: str) -> bool:
    """Create a group for a command; returns whether that was possible."""
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
    """Move a process into a group; its children will be there, too. Blocks for some 10 ms."""
    group = _groups.get(mark)
    if group is not None:
        with contextlib.suppress(OSError):  # it ended meanwhile, or is not allowed: then it runs without
            (group / "cgroup.procs").write_bytes(b"%d" % pid)


def limit(mark: str, *, processes: int, memory_bytes: int) -> None:
    """Limit a group as a whole. Controllers that are not delegated to us have no files and are skipped."""
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
        with contextlib.suppress(OSError), (group / name).open("r+b", buffering=0) as file:  # must not create the file
            file.write(b"%d" % value)


def remove_unused() -> None:
    """Remove groups of servers that died before recording them; young ones may be another server's."""
    where = home()
    if where is None:
        return
    with contextlib.suppress(OSError):
        for group in where.glob(f"{_PREFIX}*"):
            with contextlib.suppress(OSError):  # a process is in it
                if time.time() - group.stat().st_mtime > _UNUSED_S:
                    group.rmdir()


def find(marks: Iterable[str]) -> None:
    """Find the groups that another server created, anywhere in the hierarchy."""
    names = {f"{_PREFIX}{mark}": mark for mark in marks if mark not in _groups}
    mount = _mount()
    if not names or mount is None:
        return
    for directory, below, _ in os.walk(mount[0]):
        _groups.update({names[name]: Path(directory, name) for name in below if name in names})


def is_populated(mark: str) -> bool:
    """Whether a group has living processes. Fast."""
    group = _groups.get(mark)
    try:
        return group is not None and b"populated 1" in (group / "cgroup.events").read_bytes()
    except OSError:
        return False


def members(mark: str) -> list[int]:
    """Return the pids in a group and in groups below it."""
    group = _groups.get(mark)
    return [] if group is None else [pid for directory in _tree(group) for pid in _read_pids(directory)]


def kill(mark: str) -> None:
    """Kill all processes of a group at once, also those that we may not signal; never ourselves."""
    group = _groups.get(mark)
    if group is not None and os.getpid() not in members(mark):
        with contextlib.suppress(OSError):  # kernels before 5.14 lack the file: processes are then killed one by one
            (group / "cgroup.kill").write_bytes(b"1")


def remove(mark: str) -> None:
    """Remove a group whose command has ended. If dying processes still block it, the next call removes it."""
    if group := _groups.pop(mark, None):
        _to_remove.add(group)
    _to_remove.difference_update([group for group in _to_remove if _try_to_remove(group)])


def _try_to_remove(group: Path) -> bool:
    try:
        for directory in reversed(list(_tree(group))):
            directory.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def _tree(group: Path) -> Iterator[Path]:
    for directory, _, _ in os.walk(group):
        yield Path(directory)


def _read_pids(group: Path) -> list[int]:
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
        return None  # our group is outside of this mount
    return point / Path(own).relative_to(root)


def _mount() -> tuple[Path, Path] | None:
    """Return the mount point of the cgroup2 file system, and the group at its root."""
    try:
        lines = os.fsdecode(_MOUNTS.read_bytes()).splitlines()
    except OSError:
        return None
    for line in lines:
        fields, _, kind = line.partition(" - ")
        if kind.startswith("cgroup2 "):
            root, point = map(_unescape, fields.split(" ")[3:5])
            return Path(point), Path(root)
    return None


def _unescape(path: str) -> str:
    """Decode octal escapes of blanks and the like in mountinfo."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), path)
