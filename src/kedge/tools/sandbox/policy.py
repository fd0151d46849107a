"""What one command may touch: where it may write, what it may not read, and whether it has a network."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec

from kedge.tools.sandbox.limits import Limits


class SandboxUnavailable(Exception):
    """The sandbox that is wanted cannot be had here; `why` is said to a person, after "because"."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """Paths are absolute and resolved. Where two of them contradict each other, the deeper one counts."""

    temporary: str  # a directory of its own, to write to
    writable: tuple[str, ...] = ()  # with all that is below
    protected: tuple[str, ...] = ()  # below something writable, but not to be changed
    hidden: tuple[str, ...] = ()  # not to be read; some may not be there (yet)
    readable: tuple[str, ...] = ()  # although it is below something hidden or replaced
    network: bool = True
    unix_sockets: bool = False


class LaunchSpec(NamedTuple):
    """How a command is started so that it is held."""

    backend: str
    prefix: tuple[str, ...]  # words before those of the command
    restrict: Callable[[], None]  # called in the thread that starts it, and that ends with it
    env: Mapping[str, str]
    description: str  # of the sandbox, for the model, when something fails
    supervisor: str = ""  # the name of a process that is there for as long as others are
    limits: Limits | None = None  # of a command that runs without approval
    temporary: str = ""  # where an unapproved command may write
    # The same, but that it may write only to this directory below `temporary`: each command gets one of its own.
    with_temporary: Callable[[str], LaunchSpec] | None = None


_MAX_LINKS = 40  # as the kernel has it
HOMES = ("/home", "/Users")  # where the homes of users are
ROOT_HOME = "/root"
# They lead to programs outside, that would do what is asked of them.
OUTSIDE_VARIABLES = frozenset(
    {"SSH_AUTH_SOCK", "SSH_AGENT_PID", "GPG_AGENT_INFO", "DBUS_SESSION_BUS_ADDRESS", "XDG_RUNTIME_DIR"}
)


def variables(temporary: str) -> dict[str, str]:
    return dict.fromkeys(("TMPDIR", "TMP", "TEMP"), temporary)


def describe_policy(policy: Policy) -> str:
    places = [*policy.writable, "$TMPDIR"]
    network = "the network can be used" if policy.network else "there is no network"
    return f"it ran in a sandbox: it can write only below {', '.join(places)}, and {network}"


def is_below(path: str, directory: str) -> bool:
    """The directory itself is, too."""
    return path == directory or path.startswith(directory.rstrip("/") + "/")


def is_around_a_home(path: str, homes: tuple[str, ...]) -> bool:
    """Whether some home lies below a path: one of these, or any other user's."""
    if path in (*HOMES, "/"):
        return True
    return any(is_below(home, path) and home != path for home in (*homes, ROOT_HOME))


def outermost(paths: tuple[str, ...]) -> tuple[str, ...]:
    """Without those that lie below another."""
    kept: list[str] = []
    for path in sorted(set(paths), key=lambda path: path.split("/")):  # each right behind what it lies below
        if not kept or not is_below(path, kept[-1]):
            kept.append(path)
    return tuple(kept)


def resolve_outside(path: str, inside: tuple[str, ...]) -> str | None:
    """The path without links; None if it, or a link on the way, lies where a held command can change what it means."""
    todo = list(Path(path).parts)
    at, links = Path("/"), 0
    while todo:
        part = todo.pop(0)
        before, at = at, at.parent if part == ".." else at / part
        if any(is_below(str(at), place) for place in inside):
            return None
        if at.is_symlink():
            links += 1
            if links > _MAX_LINKS:
                return None
            todo = [*at.readlink().parts, *todo]
            at = before
    return str(at)


def expand_path(entry: str, home: str | None, directory: Path) -> str | None:
    """An entry of the configuration as an absolute path; None if it speaks of a home that nobody has."""
    if entry == "~" or entry.startswith("~/"):
        return None if not home else os.path.normpath(home + entry[1:])
    return os.path.normpath(directory / entry)
