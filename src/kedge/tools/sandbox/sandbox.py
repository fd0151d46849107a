"""The sandbox of a turn: whether its commands are held, by what, and to what."""

from __future__ import annotations

import os
import pwd
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import msgspec

from kedge.config.schema import SandboxConfig
from kedge.tools.sandbox import bubblewrap, git, landlock
from kedge.tools.sandbox.errors import CannotHold
from kedge.tools.sandbox.policy import Hold, Policy, expanded, is_below, outermost, resolved_outside
from kedge.tools.sandbox.secrets import SECRETS

Backend = Callable[[Policy], Hold]
_BACKENDS: dict[str, tuple[Backend, ...]] = {
    "off": (),
    "landlock": (landlock.hold,),
    "bubblewrap": (bubblewrap.hold,),
    # The one that holds more comes first.
    "auto": (bubblewrap.hold, landlock.hold),
}


def is_possible(config: SandboxConfig) -> bool:
    """Whether a command that only looks could be held on this machine: what mode `plan` needs. Not for the loop."""
    if config.mode == "bubblewrap":
        return bubblewrap.why_not() is None
    if config.mode == "landlock":
        return landlock.why_not() is None
    return bubblewrap.why_not() is None or landlock.why_not() is None


class Sandbox(msgspec.Struct, frozen=True, kw_only=True):
    """For one turn. `is_planning`: its commands may write nothing, whatever is configured."""

    config: SandboxConfig
    directory: Path
    scratch: Path
    private: tuple[Path, ...] = ()  # of Kedge: never read by a command
    is_planning: bool = False
    env: Mapping[str, str] = {}

    @property
    def is_wanted(self) -> bool:
        return self.is_planning or self.config.mode != "off"

    @property
    def asks(self) -> bool:
        """Whether commands that are held are asked about like others."""
        return self.config.ask or self.is_planning

    def hold(self) -> Hold | None:
        """How to hold the next command; None where none is wanted. Raises CannotHold. Not for the loop."""
        if not self.is_wanted:
            return None
        policy = self.policy()
        if "/" in policy.writable:
            raise CannotHold("the workspace is the whole machine")
        whys: list[str] = []
        for backend in _BACKENDS["auto" if self.config.mode == "off" else self.config.mode]:
            try:
                return backend(policy)
            except CannotHold as error:
                whys.append(error.why)
        raise CannotHold("; ".join(whys))

    def policy(self) -> Policy:
        directory = os.path.realpath(self.directory)
        scratch = os.path.realpath(self.scratch)
        temporary = Path(scratch, "tmp")
        temporary.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self.is_planning:
            writable: tuple[str, ...] = ()
            protected: tuple[str, ...] = ()
        else:
            writable = self._writable(directory)
            protected = tuple(map(str, git.protected(Path(directory))))
        return Policy(
            temporary=str(temporary),
            writable=writable,
            protected=protected,
            hidden=self._hidden(directory),
            readable=(directory, scratch),
            network=self.config.network and not self.is_planning,
            unix_sockets=self.config.unix_sockets and not self.is_planning,
        )

    def _writable(self, directory: str) -> tuple[str, ...]:
        """One that is not there cannot be written; one that a held command could redirect is left out."""
        found = [directory, *map(str, git.elsewhere(Path(directory)))]
        for entry in self.config.writable:
            path = expanded(entry, self._homes[0], self.directory)
            real = None if path is None else resolved_outside(path, tuple(found))
            if real is not None and Path(real).exists():
                found.append(real)
        return outermost(tuple(found))

    def _hidden(self, directory: str) -> tuple[str, ...]:
        own = [os.path.realpath(path) for path in self.private]
        if self.config.mode == "off":  # it only plans: who may read what is asked elsewhere
            return tuple(own)
        shown = self._real(self.config.readable)
        kept = [path for path in self._real(SECRETS) if not any(is_below(path, each) for each in shown)]
        found = dict.fromkeys((*own, *kept, *self._real(self.config.hidden)))
        return tuple(path for path in found if path != directory)

    def _real(self, entries: Iterable[str]) -> list[str]:
        return [
            os.path.realpath(path)
            for entry in entries
            for home in self._homes
            if (path := expanded(entry, home, self.directory)) is not None
        ]

    @property
    def _homes(self) -> tuple[str | None, ...]:
        """The caller's, and the one that the machine knows: a variable must not lead away from it."""
        known = _known_home()
        return tuple(dict.fromkeys((self.env.get("HOME"), known)))


def _known_home() -> str | None:
    try:
        return pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:
        return None
