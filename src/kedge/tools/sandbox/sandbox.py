"""The sandbox of a turn: whether its commands are held, by what, and to what."""

from __future__ import annotations

import os
import pwd
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from kedge.config.schema import SandboxConfig
from kedge.tools.sandbox import bubblewrap, git, kernel, landlock, read_only
from kedge.tools.sandbox.policy import (
    LaunchSpec,
    Policy,
    SandboxUnavailable,
    expand_path,
    is_below,
    outermost,
    resolve_outside,
)
from kedge.tools.sandbox.read_only import ReadOnlyPolicy
from kedge.tools.sandbox.secrets import SECRETS

P = TypeVar("P")
Backend = Callable[[Policy], LaunchSpec]
_BACKENDS: dict[str, tuple[Backend, ...]] = {
    "off": (),
    "landlock": (landlock.prepare,),
    "bubblewrap": (bubblewrap.prepare,),
    # The one that holds more comes first.
    "auto": (bubblewrap.prepare, landlock.prepare),
}


def can_sandbox_read_only() -> bool:
    """Whether a command could run here that writes nothing. Tried once, which takes a moment: not for the loop."""
    return landlock.why_not() is None or bubblewrap.why_not() is None


class Sandbox(msgspec.Struct, frozen=True, kw_only=True):
    """For one turn. `is_planning`: its commands run in the read-only sandbox, whatever is configured."""

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

    def prepare(self) -> LaunchSpec | None:
        """How to start the next command; None where none is wanted. Raises SandboxUnavailable. Not for the loop."""
        if not self.is_wanted:
            return None
        if self.is_planning:
            return self.prepare_read_only()
        policy = self.policy()
        if "/" in policy.writable:
            raise SandboxUnavailable("the workspace is the whole machine")
        return _try_backends(_BACKENDS[self.config.mode], policy)

    def prepare_read_only(self, readable: Sequence[str] = ()) -> LaunchSpec:
        """How to run a command that nobody approved: it reads the workspace, the system and these paths, resolved.

        Raises SandboxUnavailable. It does not depend on `sandbox.mode`. Not for the loop."""
        policy = self.read_only_policy(readable)
        launch_spec = _try_backends(_read_only_backends(), policy)
        return launch_spec._replace(description=read_only.describe(is_planning=self.is_planning))

    def read_only_policy(self, readable: Sequence[str] = ()) -> ReadOnlyPolicy:
        request = read_only.request_for(
            directory=self.directory,
            scratch=self.scratch,
            private=self.private,
            hidden=self._real(self.config.hidden),
            homes=self._homes,
            env=self.env,
        )
        try:
            return read_only.policy_for(request, readable)
        except OSError as error:  # the workspace is gone
            raise SandboxUnavailable(f"the workspace cannot be looked at ({error.strerror})") from error

    def policy(self) -> Policy:
        directory = os.path.realpath(self.directory)
        scratch = os.path.realpath(self.scratch)
        temporary = Path(scratch, "tmp")
        temporary.mkdir(mode=0o700, parents=True, exist_ok=True)
        return Policy(
            temporary=str(temporary),
            writable=self._writable(directory),
            protected=tuple(map(str, git.protected(Path(directory)))),
            hidden=self._hidden(directory),
            readable=(directory, scratch),
            network=self.config.network,
            unix_sockets=self.config.unix_sockets,
        )

    def _writable(self, directory: str) -> tuple[str, ...]:
        """One that is not there cannot be written; one that a held command could redirect is left out."""
        found = [directory, *map(str, git.elsewhere(Path(directory)))]
        for entry in self.config.writable:
            path = expand_path(entry, self._homes[0], self.directory)
            real = None if path is None else resolve_outside(path, tuple(found))
            if real is not None and Path(real).exists():
                found.append(real)
        return outermost(tuple(found))

    def _hidden(self, directory: str) -> tuple[str, ...]:
        own = [os.path.realpath(path) for path in self.private]
        shown = self._real(self.config.readable)
        kept = [path for path in self._real(SECRETS) if not any(is_below(path, each) for each in shown)]
        found = dict.fromkeys((*own, *kept, *self._real(self.config.hidden)))
        return tuple(path for path in found if path != directory)

    def _real(self, entries: Iterable[str]) -> list[str]:
        return [
            os.path.realpath(path)
            for entry in entries
            for home in self._homes
            if (path := expand_path(entry, home, self.directory)) is not None
        ]

    @property
    def _homes(self) -> tuple[str | None, ...]:
        """The caller's, and the one that the machine knows: a variable must not lead away from it."""
        known = _known_home()
        return tuple(dict.fromkeys((self.env.get("HOME"), known)))


def _read_only_backends() -> tuple[Callable[[ReadOnlyPolicy], LaunchSpec], ...]:
    """Landlock first, which is several times as quick; but not one that knows no signals, if there is another."""
    if landlock.why_not() is None and kernel.landlock_abi() < landlock.ABI_OF_SCOPES:
        return (bubblewrap.prepare_read_only, landlock.prepare_read_only)
    return (landlock.prepare_read_only, bubblewrap.prepare_read_only)


def _try_backends(backends: Iterable[Callable[[P], LaunchSpec]], policy: P) -> LaunchSpec:
    whys: list[str] = []
    for backend in backends:
        try:
            return backend(policy)
        except SandboxUnavailable as error:
            whys.append(error.why)
    raise SandboxUnavailable("; ".join(whys))


def _known_home() -> str | None:
    try:
        return pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:
        return None
