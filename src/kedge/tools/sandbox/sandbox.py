"""The sandbox of a turn: whether its commands are sandboxed, by which backend, and with which policy."""

from __future__ import annotations

import os
import pwd
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from kedge.config.schema import SandboxConfig
from kedge.tools.sandbox import bubblewrap, kernel, landlock, read_only
from kedge.tools.sandbox.outside_paths import find_git_protected, find_git_writable
from kedge.tools.sandbox.policy import (
    LaunchSpec,
    SandboxPolicy,
    SandboxUnavailable,
    expand_path,
    is_below,
    outermost,
    resolve_outside,
)
from kedge.tools.sandbox.read_only import SECRETS, ReadOnlyPolicy

P = TypeVar("P")
Backend = Callable[[SandboxPolicy], LaunchSpec]
_BACKENDS: dict[str, tuple[Backend, ...]] = {
    "off": (),
    "landlock": (landlock.prepare,),
    "bubblewrap": (bubblewrap.prepare,),
    # The stricter one comes first.
    "auto": (bubblewrap.prepare, landlock.prepare),
}


_ASK_FOR_MORE = "If it failed because of that, call bash again with unsandboxed: true: the user is asked"


def can_sandbox_read_only() -> bool:
    """Whether a read-only sandbox is available. The first call tries it and takes a moment: not on the event loop."""
    return landlock.find_problem() is None or bubblewrap.find_problem() is None


class Sandbox(msgspec.Struct, frozen=True, kw_only=True):
    """`is_planning`: all commands run in the read-only sandbox, whatever is configured."""

    config: SandboxConfig
    directory: Path
    scratch: Path
    private: tuple[Path, ...] = ()  # Kedge's own files, never readable
    is_planning: bool = False
    env: Mapping[str, str] = {}

    @property
    def is_enabled(self) -> bool:
        return self.is_planning or self.config.mode != "off"

    @property
    def asks_user(self) -> bool:
        """Whether the user is asked about sandboxed commands as about others."""
        return self.config.ask or self.is_planning

    def prepare(self) -> LaunchSpec | None:
        """How to start the next command; None if no sandbox is configured. Raises SandboxUnavailable. Blocks."""
        if not self.is_enabled:
            return None
        if self.is_planning:
            return self.prepare_read_only()
        policy = self.make_policy()
        if "/" in policy.writable:
            raise SandboxUnavailable("the workspace is the root directory")
        return _try_backends(_BACKENDS[self.config.mode], policy)

    def prepare_contained(self) -> LaunchSpec:
        """How to start a command of mode `auto`: the configured sandbox, or the best one if none is configured.

        Raises SandboxUnavailable, also for a home directory: programs obey files in it. Blocks.
        """
        policy = self.make_policy()
        homes = [os.path.realpath(home) for home in self._homes if home]
        if any(is_below(home, path) for home in homes for path in policy.writable):
            raise SandboxUnavailable("a home directory would be writable")
        mode = "auto" if self.config.mode == "off" else self.config.mode
        launch_spec = _try_backends(_BACKENDS[mode], policy)
        return launch_spec._replace(description=f"{launch_spec.description}. {_ASK_FOR_MORE}")

    def prepare_read_only(self, readable: Sequence[str] = ()) -> LaunchSpec:
        """How to start a command that was not approved: it reads the workspace, the system and these resolved paths.

        Does not depend on `sandbox.mode`. Raises SandboxUnavailable. Blocks."""
        policy = self.make_read_only_policy(readable)
        launch_spec = _try_backends(_read_only_backends(), policy)
        return launch_spec._replace(description=read_only.describe(is_planning=self.is_planning))

    def make_read_only_policy(self, readable: Sequence[str] = ()) -> ReadOnlyPolicy:
        inputs = read_only.PolicyInputs(
            directory=os.path.realpath(self.directory),
            scratch=os.path.realpath(self.scratch),
            private=tuple(os.path.realpath(path) for path in self.private),
            hidden=tuple(self._resolve(self.config.hidden)),
            homes=tuple(os.path.realpath(home) for home in self._homes if home),
            path=self.env.get("PATH", os.defpath),
            config_home=self.env.get("XDG_CONFIG_HOME", ""),
        )
        try:
            return read_only.get_policy(inputs, readable)
        except OSError as error:  # the workspace is gone
            raise SandboxUnavailable(f"the workspace cannot be read ({error.strerror})") from error

    def make_policy(self) -> SandboxPolicy:
        directory = os.path.realpath(self.directory)
        scratch = os.path.realpath(self.scratch)
        temporary = Path(scratch, "tmp")
        temporary.mkdir(mode=0o700, parents=True, exist_ok=True)
        return SandboxPolicy(
            temporary=str(temporary),
            writable=self._find_writable(directory),
            protected=tuple(map(str, find_git_protected(Path(directory)))),
            hidden=self._find_hidden(directory),
            readable=(directory, scratch),
            network=self.config.network,
            unix_sockets=self.config.unix_sockets,
        )

    def _find_writable(self, directory: str) -> tuple[str, ...]:
        """Leave out directories that do not exist, and those that a sandboxed command could redirect by a link."""
        found = [directory, *map(str, find_git_writable(Path(directory)))]
        for entry in self.config.writable:
            path = expand_path(entry, self._homes[0], self.directory)
            real = None if path is None else resolve_outside(path, tuple(found))
            if real is not None and Path(real).exists():
                found.append(real)
        return outermost(tuple(found))

    def _find_hidden(self, directory: str) -> tuple[str, ...]:
        own = [os.path.realpath(path) for path in self.private]
        shown = self._resolve(self.config.readable)
        secrets = [path for path in self._resolve(SECRETS) if not any(is_below(path, each) for each in shown)]
        found = dict.fromkeys((*own, *secrets, *self._resolve(self.config.hidden)))
        return tuple(path for path in found if path != directory)

    def _resolve(self, entries: Iterable[str]) -> list[str]:
        return [
            os.path.realpath(path)
            for entry in entries
            for home in self._homes
            if (path := expand_path(entry, home, self.directory)) is not None
        ]

    @property
    def _homes(self) -> tuple[str | None, ...]:
        """The home of the environment, and that of the user database: a variable must not hide the real one."""
        return tuple(dict.fromkeys((self.env.get("HOME"), _known_home())))


def _read_only_backends() -> tuple[Callable[[ReadOnlyPolicy], LaunchSpec], ...]:
    """Landlock first, which is several times faster, unless it is too old to cover signals."""
    if landlock.find_problem() is None and kernel.landlock_abi() < landlock.ABI_OF_SCOPES:
        return (bubblewrap.prepare_read_only, landlock.prepare_read_only)
    return (landlock.prepare_read_only, bubblewrap.prepare_read_only)


def _try_backends(backends: Iterable[Callable[[P], LaunchSpec]], policy: P) -> LaunchSpec:
    problems: list[str] = []
    for backend in backends:
        try:
            return backend(policy)
        except SandboxUnavailable as error:
            problems.append(error.why)
    raise SandboxUnavailable("; ".join(problems))


def _known_home() -> str | None:
    try:
        return pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:
        return None
