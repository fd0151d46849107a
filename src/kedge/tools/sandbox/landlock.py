"""Landlock: the kernel lets a thread give up rights for itself and for all that comes of it.

It takes away everything and gives back what is listed, each time with all that is below. To read everything but what is
hidden, the directories on the way to it are listed entry by entry; so whatever appears there later cannot be read.
"""

from __future__ import annotations

import functools
import os
import socket
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

from kedge.config.schema import SandboxMode
from kedge.tools.sandbox import calls, kernel
from kedge.tools.sandbox.errors import CannotHold
from kedge.tools.sandbox.launch import in_a_thread
from kedge.tools.sandbox.policy import Hold, Policy, is_below, told, variables

NAME: SandboxMode = "landlock"
# Before, files could be cut short wherever they could be read.
OLDEST_ABI = 3
MAX_RULES = 20_000  # each is an open file for a moment; nobody's home is that full

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_REMOVE_DIR, _REMOVE_FILE = 1 << 4, 1 << 5
_MAKE_CHAR, _MAKE_DIR, _MAKE_REG, _MAKE_SOCK, _MAKE_FIFO, _MAKE_BLOCK, _MAKE_SYM = (1 << bit for bit in range(6, 13))
_REFER, _TRUNCATE, _IOCTL_DEV = 1 << 13, 1 << 14, 1 << 15
_TCP = 0b11  # bind and connect
_SCOPES = 0b11  # abstract sockets and signals

_ALL = (_TRUNCATE << 1) - 1  # of the third
_OF_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEV
_READ = _EXECUTE | _READ_FILE
# No devices are made anywhere.
_CHANGE_FILES = _WRITE_FILE | _TRUNCATE | _REFER
_CHANGE_DIRECTORIES = _REMOVE_DIR | _REMOVE_FILE | _MAKE_DIR | _MAKE_REG | _MAKE_SOCK | _MAKE_FIFO | _MAKE_SYM
_WRITE = _READ | _READ_DIR | _CHANGE_FILES | _CHANGE_DIRECTORIES

_DEVICES = tuple(f"/dev/{name}" for name in ("null", "zero", "full", "random", "urandom", "tty"))
_DEVICES_IN = "/dev"

# Of root's powers, those that its files need; the others would reach around every wall.
_CHOWN, _DAC_OVERRIDE, _FOWNER, _FSETID, _KILL, _SETGID, _SETUID, _BIND = 0, 1, 3, 4, 5, 6, 7, 10
CAPABILITIES = frozenset({_CHOWN, _DAC_OVERRIDE, _FOWNER, _FSETID, _KILL, _SETGID, _SETUID, _BIND})


@functools.cache
def why_not() -> str | None:
    """Why this machine cannot hold anything with it, or None. Tried, not looked up, and only once."""
    try:
        in_a_thread(_try)
    except CannotHold as error:
        return error.why
    except OSError as error:
        return f"the kernel refuses Landlock ({error.strerror})"
    return None


def describe() -> str:
    """What this kernel's can do and what not."""
    abi = kernel.landlock_abi()
    gaps = "" if abi >= 6 else "; it does not keep commands from signalling other processes of yours"
    return f"Landlock, ABI {abi}{gaps}"


def hold(policy: Policy) -> Hold:
    """Raises CannotHold where Landlock has no words for a policy."""
    if (why := why_not()) is not None:
        raise CannotHold(why)
    if policy.unix_sockets:
        raise CannotHold("Landlock cannot tell one Unix socket from another; unix_sockets needs bubblewrap")
    for path in policy.hidden:
        around = next((each for each in policy.writable if is_below(path, each)), None)
        if around is not None and os.path.lexists(path):
            raise CannotHold(f"Landlock cannot hide {path} inside of {around}, which can be written; bubblewrap could")
    return Hold(NAME, (), lambda: restrict(policy), variables(policy), told(policy))


def restrict(policy: Policy) -> None:
    """Hold the calling thread to a policy, for ever."""
    abi = kernel.landlock_abi()
    rights = _ALL | (_IOCTL_DEV if abi >= 5 else 0)
    net = _TCP if abi >= 4 and not policy.network else 0
    families = calls.NETWORK if policy.network else ()
    program = calls.program(families, no_attributes=policy.is_read_only)
    ruleset = kernel.create_ruleset(rights, net, _SCOPES if abi >= 6 else 0)
    try:
        for count, (path, access) in enumerate(_rules(policy)):
            _add(ruleset, path, access & rights)
            if count > MAX_RULES:
                raise CannotHold(f"there are more than {MAX_RULES:,} files beside what is hidden")
        kernel.drop_capabilities(CAPABILITIES)
        kernel.promise_no_new_privileges()
        kernel.restrict_self(ruleset)
    finally:
        os.close(ruleset)
    kernel.filter_calls(program)


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

    def parts(self, path: str) -> Iterator[str]:
        """The path, or as much of it as may be read."""
        return self.all_but(path) if path in self._ways else iter((path,))

    def all_but(self, directory: str) -> Iterator[str]:
        """The fewest paths that hold everything below a directory but what is closed, and new entries beside that."""
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
    """Hold this thread, and see whether it is held."""
    abi = kernel.landlock_abi()
    if abi < OLDEST_ABI:
        reason = "this kernel has no Landlock" if abi < 1 else "the Landlock of this kernel is too old"
        raise CannotHold(f"{reason} (Linux 6.2 or newer has it, where it is switched on)")
    ruleset = kernel.create_ruleset(_ALL, 0, 0)
    try:
        kernel.promise_no_new_privileges()
        kernel.restrict_self(ruleset)
    finally:
        os.close(ruleset)
    kernel.filter_calls(calls.program(()))
    if _works(lambda: os.close(os.open("/", os.O_RDONLY))) or _works(_make_a_socket):
        raise CannotHold("the kernel has Landlock and filters of calls, but they hold nobody")


def _make_a_socket() -> None:
    socket.socket(socket.AF_INET).close()


def _works(deed: Callable[[], None]) -> bool:
    try:
        deed()
    except OSError:
        return False
    return True
