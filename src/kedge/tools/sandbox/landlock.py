"""Landlock: the kernel lets a thread give up rights for itself and for all that comes of it.

It takes away everything and gives back what is listed, each time with all that is below. To read everything but what is
hidden, the directories on the way to it are listed entry by entry; so whatever appears there later cannot be read.
"""

from __future__ import annotations

import functools
import os
import socket
import stat
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from kedge.config.schema import SandboxMode
from kedge.tools.sandbox import kernel, seccomp
from kedge.tools.sandbox.launch import run_in_thread
from kedge.tools.sandbox.limits import UNAPPROVED
from kedge.tools.sandbox.policy import LaunchSpec, Policy, SandboxUnavailable, describe_policy, is_below, variables
from kedge.tools.sandbox.read_only import PROC_FILES, ReadOnlyPolicy

NAME: SandboxMode = "landlock"
# Before, files could be cut short wherever they could be read.
OLDEST_ABI = 3
ABI_OF_SCOPES = 6  # signals, and sockets without a file
MAX_RULES = 20_000  # each is an open file for a moment; nobody's home is that full

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_REMOVE_DIR, _REMOVE_FILE = 1 << 4, 1 << 5
_MAKE_CHAR, _MAKE_DIR, _MAKE_REG, _MAKE_SOCK, _MAKE_FIFO, _MAKE_BLOCK, _MAKE_SYM = (1 << bit for bit in range(6, 13))
_REFER, _TRUNCATE, _IOCTL_DEV = 1 << 13, 1 << 14, 1 << 15
_TCP = 0b11  # bind and connect
_SCOPES = 0b11  # abstract sockets and signals

# The kernel's inodes of /proc can be others after a while, and settings of the machine change.
_RULESET_S = 60.0
_MAX_RULESETS = 16

_ALL = (_TRUNCATE << 1) - 1  # of the third
_OF_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEV
_READ = _EXECUTE | _READ_FILE
# No devices are made anywhere.
_CHANGE_FILES = _WRITE_FILE | _TRUNCATE | _REFER
_CHANGE_DIRECTORIES = _REMOVE_DIR | _REMOVE_FILE | _MAKE_DIR | _MAKE_REG | _MAKE_SOCK | _MAKE_FIFO | _MAKE_SYM
_WRITE = _READ | _READ_DIR | _CHANGE_FILES | _CHANGE_DIRECTORIES

_DEVICES = tuple(f"/dev/{name}" for name in ("null", "zero", "full", "random", "urandom", "tty"))
_DEVICES_IN = "/dev"
_READ_ONLY_DEVICES = tuple(path for path in _DEVICES if path != "/dev/tty")

# Of root's powers, those that its files need; the others would reach around every wall.
_CHOWN, _DAC_OVERRIDE, _DAC_READ_SEARCH, _FOWNER, _FSETID, _KILL, _SETGID, _SETUID, _BIND = 0, 1, 2, 3, 4, 5, 6, 7, 10
CAPABILITIES = frozenset({_CHOWN, _DAC_OVERRIDE, _FOWNER, _FSETID, _KILL, _SETGID, _SETUID, _BIND})


@functools.cache
def why_not() -> str | None:
    """Why this machine cannot sandbox commands with it, or None. Tried, not looked up, and only once."""
    try:
        run_in_thread(_try)
    except SandboxUnavailable as error:
        return error.why
    except OSError as error:
        return f"the kernel refuses Landlock ({error.strerror})"
    return None


def describe() -> str:
    """What this kernel's can do and what not."""
    abi = kernel.landlock_abi()
    gaps = "" if abi >= ABI_OF_SCOPES else "; it does not keep commands from signalling other processes of yours"
    return f"Landlock, ABI {abi}{gaps}"


def prepare(policy: Policy) -> LaunchSpec:
    """Raises SandboxUnavailable where Landlock has no words for a policy."""
    if (why := why_not()) is not None:
        raise SandboxUnavailable(why)
    if policy.unix_sockets:
        raise SandboxUnavailable("Landlock cannot tell one Unix socket from another; unix_sockets needs bubblewrap")
    for path in policy.hidden:
        around = next((each for each in policy.writable if is_below(path, each)), None)
        if around is not None and os.path.lexists(path):
            raise SandboxUnavailable(
                f"Landlock cannot hide {path} inside of {around}, which can be written; bubblewrap could"
            )
    return LaunchSpec(NAME, (), lambda: restrict(policy), variables(policy.temporary), describe_policy(policy))


def restrict(policy: Policy) -> None:
    """Restrict the calling thread to a policy, for ever."""
    abi = kernel.landlock_abi()
    rights = _ALL | (_IOCTL_DEV if abi >= 5 else 0)
    net = _TCP if abi >= 4 and not policy.network else 0
    families = seccomp.NETWORK if policy.network else ()
    program = seccomp.program(families, also_refused=seccomp.IPC, only_self=True)
    ruleset = kernel.create_ruleset(rights, net, _SCOPES if abi >= ABI_OF_SCOPES else 0)
    try:
        for count, (path, access) in enumerate(_rules(policy)):
            _add(ruleset, path, access & rights)
            if count > MAX_RULES:
                raise SandboxUnavailable(f"there are more than {MAX_RULES:,} files beside what is hidden")
        kernel.drop_capabilities(CAPABILITIES)
        kernel.promise_no_new_privileges()
        kernel.restrict_self(ruleset)
    finally:
        os.close(ruleset)
    kernel.filter_calls(program)


def prepare_read_only(policy: ReadOnlyPolicy) -> LaunchSpec:
    """Raises SandboxUnavailable."""
    if (why := why_not()) is not None:
        raise SandboxUnavailable(why)
    return _prepare_read_only(policy, policy.temporary)


def _prepare_read_only(policy: ReadOnlyPolicy, temporary: str) -> LaunchSpec:
    return LaunchSpec(
        NAME,
        (),
        lambda: _restrict_read_only(policy, temporary),
        variables(temporary),
        "",
        limits=UNAPPROVED,
        temporary=temporary,
        with_temporary=functools.partial(_prepare_read_only, policy),
    )


def _restrict_read_only(policy: ReadOnlyPolicy, temporary: str) -> None:
    """Restrict the calling thread for ever.

    The rules for reading are made once: hundreds of files need not be opened for each command. Those for writing are
    a second layer, of this command alone. What one of the layers refuses is refused."""
    has_scopes = kernel.landlock_abi() >= ABI_OF_SCOPES
    refused = (*seccomp.IPC, *seccomp.INSPECTION, *(() if has_scopes else seccomp.SIGNALS))
    ruleset = _rulesets.get(policy)
    try:
        kernel.drop_capabilities(frozenset({_DAC_READ_SEARCH}) if policy.keeps_read_override else frozenset())
        kernel.promise_no_new_privileges()
        kernel.restrict_self(ruleset)
        _restrict_writing(temporary)
    finally:
        os.close(ruleset)
    kernel.filter_calls(
        seccomp.program((), no_attributes=True, also_refused=refused, only_self=True, no_namespaces=True)
    )


def _restrict_writing(temporary: str) -> None:
    ruleset = kernel.create_ruleset(_ALL & ~(_READ | _READ_DIR), 0, 0)
    try:
        _add(ruleset, temporary, _CHANGE_FILES | _CHANGE_DIRECTORIES)
        for path in _READ_ONLY_DEVICES:
            _add(ruleset, path, _WRITE_FILE | _TRUNCATE)
        kernel.restrict_self(ruleset)
    finally:
        os.close(ruleset)


def read_only_rules(policy: ReadOnlyPolicy) -> tuple[list[tuple[str, int]], set[str]]:
    """The rules, and the directories whose entries were listed for them."""
    closed = _Closed(policy.hidden)
    rules = [(path, _READ | _WRITE_FILE | _TRUNCATE | _IOCTL_DEV) for path in _READ_ONLY_DEVICES]
    rules += [(path, _READ_FILE) for path in PROC_FILES]
    for path in policy.readable:
        if closed.is_around(path):
            rules.append((path, _READ_DIR))  # names, also of what is hidden
        rules += [(each, _READ | _READ_DIR) for each in closed.parts(path)]
    return [*rules, (policy.temporary, _WRITE)], closed.listed


class _Rulesets:
    """Rulesets of policies, kept open, and made anew when what they name has changed or they are old."""

    def __init__(self) -> None:
        self._kept: dict[ReadOnlyPolicy, _Ruleset] = {}
        self._lock = threading.Lock()

    def get(self, policy: ReadOnlyPolicy) -> int:
        """A descriptor, to be closed by the caller."""
        with self._lock:
            kept = self._kept.pop(policy, None)
            if kept is not None and not kept.is_current():
                os.close(kept.fd)
                kept = None
            self._kept[policy] = kept = kept or _Ruleset.make(policy)
            while len(self._kept) > _MAX_RULESETS:
                os.close(self._kept.pop(next(iter(self._kept))).fd)
            return os.dup(kept.fd)


class _Ruleset(NamedTuple):
    """`stamps` tell whether a path is still the same file, and a directory that was listed has the same entries."""

    fd: int
    stamps: dict[tuple[str, bool], tuple[int, ...]]
    made_at: float

    @classmethod
    def make(cls, policy: ReadOnlyPolicy) -> _Ruleset:
        abi = kernel.landlock_abi()
        rights = _ALL | (_IOCTL_DEV if abi >= 5 else 0)
        rules, listed = read_only_rules(policy)
        if len(rules) > MAX_RULES:
            raise SandboxUnavailable(f"there are more than {MAX_RULES:,} files beside what is hidden")
        watched = {(path, False) for path in (*policy.readable, policy.temporary)} | {(path, True) for path in listed}
        # Stamps first: what changes meanwhile is noticed the next time.
        stamps = {each: _stamp(*each) for each in watched}
        ruleset = kernel.create_ruleset(rights, _TCP if abi >= 4 else 0, _SCOPES if abi >= ABI_OF_SCOPES else 0)
        try:
            for path, access in rules:
                _add(ruleset, path, access & rights)
        except BaseException:
            os.close(ruleset)
            raise
        return cls(ruleset, stamps, time.monotonic())

    def is_current(self) -> bool:
        if time.monotonic() - self.made_at > _RULESET_S:
            return False
        return all(_stamp(*each) == stamp for each, stamp in self.stamps.items())


def _stamp(path: str, has_listing: bool) -> tuple[int, ...]:
    try:
        info = os.lstat(path)
    except OSError:
        return ()
    return (info.st_dev, info.st_ino, info.st_mtime_ns if has_listing else 0)


_rulesets = _Rulesets()


def _rules(policy: Policy) -> Iterator[tuple[str, int]]:
    # Names can be listed everywhere: without, not even the way to the workspace could be looked at.
    yield "/", _READ_DIR
    closed = _Closed((_DEVICES_IN, *policy.hidden))
    yield from ((path, _READ) for path in closed.all_but("/"))
    yield from ((path, _READ | _WRITE_FILE | _TRUNCATE | _IOCTL_DEV) for path in _DEVICES)
    for path in policy.readable:
        yield from ((each, _READ) for each in closed.parts(path))
    yield from ((path, _WRITE) for path in (*policy.writable, policy.temporary))


class _Closed:
    """What is not to be read, and the directories on the way to it."""

    def __init__(self, paths: tuple[str, ...]) -> None:
        self._paths = frozenset(paths)
        self._ways = frozenset(str(parent) for path in paths for parent in Path(path).parents)
        self.listed: set[str] = set()

    def is_around(self, path: str) -> bool:
        return path in self._ways

    def parts(self, path: str) -> Iterator[str]:
        """The path, or as much of it as may be read."""
        return self.all_but(path) if path in self._ways else iter((path,))

    def all_but(self, directory: str) -> Iterator[str]:
        """The fewest paths that hold everything below a directory but what is closed, and new entries beside that."""
        self.listed.add(directory)
        try:
            entries = list(os.scandir(directory))
        except OSError:
            return  # what cannot be looked at cannot be read either
        for entry in entries:
            if entry.path not in self._paths and not entry.is_symlink():
                yield from self.parts(entry.path)


def _add(ruleset: int, path: str, access: int) -> None:
    try:
        fd = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return  # gone meanwhile, or not for us: it stays closed
    try:
        if not stat.S_ISDIR(os.fstat(fd).st_mode):
            access &= _OF_FILES
        if access:
            kernel.add_path(ruleset, fd, access)
    finally:
        os.close(fd)


def _try() -> None:
    """Restrict this thread, and check that it is restricted."""
    abi = kernel.landlock_abi()
    if abi < OLDEST_ABI:
        reason = "this kernel has no Landlock" if abi < 1 else "the Landlock of this kernel is too old"
        raise SandboxUnavailable(f"{reason} (Linux 6.2 or newer has it, where it is switched on)")
    ruleset = kernel.create_ruleset(_ALL, 0, 0)
    try:
        kernel.promise_no_new_privileges()
        kernel.restrict_self(ruleset)
    finally:
        os.close(ruleset)
    kernel.filter_calls(seccomp.program(()))
    if _works(lambda: os.close(os.open("/", os.O_RDONLY))) or _works(_make_a_socket):
        raise SandboxUnavailable("the kernel has Landlock and filters of calls, but they restrict nothing")


def _make_a_socket() -> None:
    socket.socket(socket.AF_INET).close()


def _works(deed: Callable[[], None]) -> bool:
    try:
        deed()
    except OSError:
        return False
    return True
