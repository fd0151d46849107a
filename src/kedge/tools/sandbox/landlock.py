"""The Landlock backend: a thread gives up rights for itself and for all processes that it starts.

A ruleset denies everything but the listed paths, each with all that is below. To allow everything but hidden paths, the
directories above those are listed entry by entry, so files that appear there later cannot be read.
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
from kedge.tools.sandbox.policy import (
    UNAPPROVED,
    LaunchSpec,
    SandboxPolicy,
    SandboxUnavailable,
    describe_policy,
    is_below,
    temporary_variables,
)
from kedge.tools.sandbox.read_only import PROC_FILES, ReadOnlyPolicy

NAME: SandboxMode = "landlock"
# Older versions cannot deny truncating a readable file.
OLDEST_ABI = 3
ABI_OF_SCOPES = 6  # signals, and sockets without a file
MAX_RULES = 20_000  # each opens a file for a moment; no home directory has more entries

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_REMOVE_DIR, _REMOVE_FILE = 1 << 4, 1 << 5
_MAKE_CHAR, _MAKE_DIR, _MAKE_REG, _MAKE_SOCK, _MAKE_FIFO, _MAKE_BLOCK, _MAKE_SYM = (1 << bit for bit in range(6, 13))
_REFER, _TRUNCATE, _IOCTL_DEV = 1 << 13, 1 << 14, 1 << 15
_TCP = 0b11  # bind and connect
_SCOPES = 0b11  # abstract sockets and signals

# Inodes of /proc change after a while, and so do system settings.
_RULESET_S = 60.0
_MAX_RULESETS = 16

_ALL = (_TRUNCATE << 1) - 1  # rights of ABI 3
_OF_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEV
_READ = _EXECUTE | _READ_FILE
# Without the right to make devices.
_CHANGE_FILES = _WRITE_FILE | _TRUNCATE | _REFER
_CHANGE_DIRECTORIES = _REMOVE_DIR | _REMOVE_FILE | _MAKE_DIR | _MAKE_REG | _MAKE_SOCK | _MAKE_FIFO | _MAKE_SYM
_WRITE = _READ | _READ_DIR | _CHANGE_FILES | _CHANGE_DIRECTORIES

_DEVICES = tuple(f"/dev/{name}" for name in ("null", "zero", "full", "random", "urandom", "tty"))
_DEVICES_IN = "/dev"
_READ_ONLY_DEVICES = tuple(path for path in _DEVICES if path != "/dev/tty")

# The capabilities of root that work on files needs; the others could bypass the sandbox.
_CHOWN, _DAC_OVERRIDE, _DAC_READ_SEARCH, _FOWNER, _FSETID, _KILL, _SETGID, _SETUID, _BIND = 0, 1, 2, 3, 4, 5, 6, 7, 10
CAPABILITIES = frozenset({_CHOWN, _DAC_OVERRIDE, _FOWNER, _FSETID, _KILL, _SETGID, _SETUID, _BIND})


@functools.cache
def find_problem() -> str | None:
    """Why Landlock cannot be used on this machine, or None. Tries it once to find out."""
    try:
        run_in_thread(_probe)
    except SandboxUnavailable as error:
        return error.why
    except OSError as error:
        return f"the kernel refuses Landlock ({error.strerror})"
    return None


def describe() -> str:
    """The version of the kernel's Landlock, and what it lacks."""
    abi = kernel.landlock_abi()
    gaps = "" if abi >= ABI_OF_SCOPES else "; commands can still signal your other processes"
    return f"Landlock, ABI {abi}{gaps}"


def prepare(policy: SandboxPolicy) -> LaunchSpec:
    """Raises SandboxUnavailable if Landlock cannot express the policy."""
    if (why := find_problem()) is not None:
        raise SandboxUnavailable(why)
    if policy.unix_sockets:
        raise SandboxUnavailable("Landlock cannot tell one Unix socket from another; unix_sockets needs bubblewrap")
    for path in policy.hidden:
        around = next((each for each in policy.writable if is_below(path, each)), None)
        if around is not None and os.path.lexists(path):
            raise SandboxUnavailable(f"Landlock cannot hide {path} in the writable {around}; bubblewrap can")
    return LaunchSpec(
        NAME, (), lambda: restrict(policy), temporary_variables(policy.temporary), describe_policy(policy)
    )


def restrict(policy: SandboxPolicy) -> None:
    """Restrict the calling thread to a policy, permanently."""
    abi = kernel.landlock_abi()
    rights = _ALL | (_IOCTL_DEV if abi >= 5 else 0)
    net = _TCP if abi >= 4 and not policy.network else 0
    families = seccomp.NETWORK if policy.network else ()
    program = seccomp.build_filter(families, also_refused=seccomp.IPC, only_self=True)
    ruleset = kernel.create_ruleset(rights, net, _SCOPES if abi >= ABI_OF_SCOPES else 0)
    try:
        for count, (path, access) in enumerate(_make_rules(policy)):
            _add_rule(ruleset, path, access & rights)
            if count > MAX_RULES:
                raise SandboxUnavailable(f"there are more than {MAX_RULES:,} files beside what is hidden")
        kernel.drop_capabilities(CAPABILITIES)
        kernel.set_no_new_privileges()
        kernel.restrict_self(ruleset)
    finally:
        os.close(ruleset)
    kernel.install_filter(program)


def prepare_read_only(policy: ReadOnlyPolicy, temporary: str = "") -> LaunchSpec:
    """`temporary`: only this directory below that of the policy is writable. Raises SandboxUnavailable."""
    if (why := find_problem()) is not None:
        raise SandboxUnavailable(why)
    temporary = temporary or policy.temporary
    return LaunchSpec(
        NAME,
        (),
        lambda: _restrict_read_only(policy, temporary),
        temporary_variables(temporary),
        "",
        limits=UNAPPROVED,
        temporary=temporary,
        with_temporary=functools.partial(prepare_read_only, policy),
    )


def _restrict_read_only(policy: ReadOnlyPolicy, temporary: str) -> None:
    """Restrict the calling thread permanently.

    The ruleset for reading is shared, because making it opens hundreds of files; the one for writing is a second
    layer for this command alone. Both layers must allow an access."""
    has_scopes = kernel.landlock_abi() >= ABI_OF_SCOPES
    refused = (*seccomp.IPC, *seccomp.INSPECTION, *(() if has_scopes else seccomp.SIGNALS))
    ruleset = _rulesets.get(policy)
    try:
        kernel.drop_capabilities(frozenset({_DAC_READ_SEARCH}) if policy.keeps_read_override else frozenset())
        kernel.set_no_new_privileges()
        kernel.restrict_self(ruleset)
        _restrict_writing(temporary)
    finally:
        os.close(ruleset)
    kernel.install_filter(
        seccomp.build_filter((), no_attributes=True, also_refused=refused, only_self=True, no_namespaces=True)
    )


def _restrict_writing(temporary: str) -> None:
    ruleset = kernel.create_ruleset(_ALL & ~(_READ | _READ_DIR), 0, 0)
    try:
        _add_rule(ruleset, temporary, _CHANGE_FILES | _CHANGE_DIRECTORIES)
        for path in _READ_ONLY_DEVICES:
            _add_rule(ruleset, path, _WRITE_FILE | _TRUNCATE)
        kernel.restrict_self(ruleset)
    finally:
        os.close(ruleset)


def read_only_rules(policy: ReadOnlyPolicy) -> tuple[list[tuple[str, int]], set[str]]:
    """The rules, and the directories whose entries were listed for them."""
    hidden = _HiddenPaths(policy.hidden)
    rules = [(path, _READ | _WRITE_FILE | _TRUNCATE | _IOCTL_DEV) for path in _READ_ONLY_DEVICES]
    rules += [(path, _READ_FILE) for path in PROC_FILES]
    for path in policy.readable:
        if hidden.is_above(path):
            rules.append((path, _READ_DIR))  # names, also of hidden entries
        rules += [(each, _READ | _READ_DIR) for each in hidden.split(path)]
    return [*rules, (policy.temporary, _WRITE)], hidden.listed


class _Rulesets:
    """Cache of open rulesets by policy; one is made again when it is old or a path in it has changed."""

    def __init__(self) -> None:
        self._rulesets: dict[ReadOnlyPolicy, _Ruleset] = {}
        self._lock = threading.Lock()

    def get(self, policy: ReadOnlyPolicy) -> int:
        """Return a file descriptor, which the caller closes."""
        with self._lock:
            cached = self._rulesets.pop(policy, None)
            if cached is not None and not cached.is_current():
                os.close(cached.fd)
                cached = None
            self._rulesets[policy] = cached = cached or _Ruleset.make(policy)
            while len(self._rulesets) > _MAX_RULESETS:
                os.close(self._rulesets.pop(next(iter(self._rulesets))).fd)
            return os.dup(cached.fd)


class _Ruleset(NamedTuple):
    """`stamps` show whether a path is still the same file, and a listed directory has the same entries."""

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
        # Stamps first: a change made meanwhile is noticed the next time.
        stamps = {each: _stamp(*each) for each in watched}
        ruleset = kernel.create_ruleset(rights, _TCP if abi >= 4 else 0, _SCOPES if abi >= ABI_OF_SCOPES else 0)
        try:
            for path, access in rules:
                _add_rule(ruleset, path, access & rights)
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


def _make_rules(policy: SandboxPolicy) -> Iterator[tuple[str, int]]:
    # Names can be listed everywhere: otherwise not even the path to the workspace could be resolved.
    yield "/", _READ_DIR
    hidden = _HiddenPaths((_DEVICES_IN, *policy.hidden))
    yield from ((path, _READ) for path in hidden.list_except("/"))
    yield from ((path, _READ | _WRITE_FILE | _TRUNCATE | _IOCTL_DEV) for path in _DEVICES)
    for path in policy.readable:
        yield from ((each, _READ) for each in hidden.split(path))
    yield from ((path, _WRITE) for path in (*policy.writable, policy.temporary))


class _HiddenPaths:
    """Paths that must not be read, and the directories above them."""

    def __init__(self, paths: tuple[str, ...]) -> None:
        self._paths = frozenset(paths)
        self._parents = frozenset(str(parent) for path in paths for parent in Path(path).parents)
        self.listed: set[str] = set()

    def is_above(self, path: str) -> bool:
        return path in self._parents

    def split(self, path: str) -> Iterator[str]:
        """The path itself, or the parts of it that may be read."""
        return self.list_except(path) if path in self._parents else iter((path,))

    def list_except(self, directory: str) -> Iterator[str]:
        """The fewest paths that cover everything below a directory except hidden paths and new entries beside them."""
        self.listed.add(directory)
        try:
            entries = list(os.scandir(directory))
        except OSError:
            return  # it cannot be read either
        for entry in entries:
            if entry.path not in self._paths and not entry.is_symlink():
                yield from self.split(entry.path)


def _add_rule(ruleset: int, path: str, access: int) -> None:
    try:
        fd = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return  # gone, or not permitted: it stays hidden
    try:
        if not stat.S_ISDIR(os.fstat(fd).st_mode):
            access &= _OF_FILES
        if access:
            kernel.add_path(ruleset, fd, access)
    finally:
        os.close(fd)


def _probe() -> None:
    """Restrict this thread, and check that the restriction works."""
    abi = kernel.landlock_abi()
    if abi < OLDEST_ABI:
        reason = "this kernel has no Landlock" if abi < 1 else "the Landlock of this kernel is too old"
        raise SandboxUnavailable(f"{reason} (Linux 6.2 or newer has it, if it is enabled)")
    ruleset = kernel.create_ruleset(_ALL, 0, 0)
    try:
        kernel.set_no_new_privileges()
        kernel.restrict_self(ruleset)
    finally:
        os.close(ruleset)
    kernel.install_filter(seccomp.build_filter(()))
    if _works(lambda: os.close(os.open("/", os.O_RDONLY))) or _works(lambda: socket.socket(socket.AF_INET).close()):
        raise SandboxUnavailable("the kernel has Landlock and seccomp, but they restrict nothing")


def _works(action: Callable[[], None]) -> bool:
    try:
        action()
    except OSError:
        return False
    return True
