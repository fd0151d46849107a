"""What a command may read that runs without approval: a list of what is allowed, and nothing else.

The workspace, the system's programs and public settings, the toolchains on PATH, what git needs from elsewhere, and
the paths that the permission check judged. It writes to a temporary directory of its own, and has no network.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from kedge.tools.sandbox import git, toolchains
from kedge.tools.sandbox.policy import HOMES, SandboxUnavailable, is_around_a_home, is_below, outermost
from kedge.tools.sandbox.secrets import SECRETS, private_files

_SYSTEM = (
    *("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix", "/gnu/store", "/snap"),
    f"{HOMES[0]}/linuxbrew",
    *("/var/lib/dpkg", "/var/lib/rpm", "/var/lib/pacman/local", "/var/lib/apt/lists", "/var/lib/alternatives"),
    *("/var/cache/man", "/lib/apk/db", "/var/cache/fontconfig"),
    # What names are looked up with, and where NixOS keeps programs.
    *("/run/systemd/resolve", "/run/resolvconf", "/run/NetworkManager/resolv.conf", "/run/current-system"),
    *("/run/wrappers", "/run/opengl-driver", "/sys/devices/system/cpu", "/sys/devices/system/node"),
)
# Of these only what everybody may read: the server may be root.
_PUBLIC = {"/etc": 8, "/usr/local/etc": 8, "/opt": 1}
# Facts about the machine; everything else in /proc is about processes, or changes the kernel.
PROC_FILES = tuple(
    f"/proc/{name}"
    for name in (
        *("cpuinfo", "meminfo", "stat", "loadavg", "version", "uptime", "filesystems", "cmdline", "swaps", "vmstat"),
        *("devices", "partitions", "diskstats", "pressure"),
        *(f"sys/kernel/{name}" for name in ("osrelease", "ostype", "version", "hostname", "pid_max", "ngroups_max")),
        *("sys/kernel/cap_last_cap", "sys/kernel/threads-max", "sys/kernel/random/uuid", "sys/vm/overcommit_memory"),
        *("sys/fs/file-max", "sys/vm/max_map_count"),
    )
)
_NEVER = ("/proc", "/sys", "/dev")
_SECRETS_IN_TOOLCHAINS_DEPTH = 2
_NEW_AFTER_S = 60.0
_MAX_CACHED = 32


class ReadOnlyPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """Paths are absolute and resolved. `hidden` counts inside of `readable`, unless something readable is deeper."""

    temporary: str  # each command gets a directory below, and may write there
    readable: tuple[str, ...]
    hidden: tuple[str, ...]
    links: tuple[tuple[str, str], ...] = ()  # names of what is readable that are links: where they lead
    keeps_read_override: bool = False  # of root, for a workspace that belongs to somebody else


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """What a policy is made from; equal ones share it for a while."""

    directory: str
    scratch: str
    private: tuple[str, ...]
    hidden: tuple[str, ...]  # configured, beside the usual secrets
    homes: tuple[str, ...]
    path: str
    config_home: str


_cache: dict[Request, tuple[float, ReadOnlyPolicy]] = {}


def policy_for(request: Request, judged: Iterable[str] = ()) -> ReadOnlyPolicy:
    """The policy, with the paths that the permission check judged. Raises SandboxUnavailable.

    It looks at directories: not for the event loop."""
    now = time.monotonic()
    made_at, policy = _cache.get(request, (float("-inf"), None))
    if policy is None or now - made_at > _NEW_AFTER_S:
        policy = _policy(request)
        _cache.pop(request, None)
        _cache[request] = (now, policy)
        while len(_cache) > _MAX_CACHED:
            _cache.pop(next(iter(_cache)), None)
    Path(policy.temporary).mkdir(mode=0o700, parents=True, exist_ok=True)
    return _with_judged(policy, judged, request.homes)


def _with_judged(policy: ReadOnlyPolicy, judged: Iterable[str], homes: tuple[str, ...]) -> ReadOnlyPolicy:
    """The same policy if they are readable already, which is quicker: its rules are there."""
    added = [
        path
        for path in dict.fromkeys(map(os.path.realpath, judged))
        if not any(is_below(path, each) for each in (*policy.readable, *policy.hidden))
        and not is_around_a_home(path, homes)
        and Path(path).exists()
    ]
    return msgspec.structs.replace(policy, readable=(*policy.readable, *outermost(tuple(added)))) if added else policy


def describe(*, is_planning: bool) -> str:
    """For the model, when a command failed."""
    bounds = "it can read the workspace and system files, write only to $TMPDIR, and has no network"
    if is_planning:
        return f"it ran in a read-only sandbox: {bounds}; in mode plan there is no other way to run a command"
    return (
        f"it ran in a read-only sandbox because nobody approved it: {bounds}. If it needs more, call bash again with"
        " unsandboxed: true, which asks the user"
    )


def _policy(request: Request) -> ReadOnlyPolicy:
    directory, scratch = request.directory, request.scratch
    if directory == "/" or any(is_below(directory, each) for each in _NEVER):
        raise SandboxUnavailable("the workspace is the whole machine, or a part of the kernel's files")
    own = (directory, scratch)
    programs = toolchains.readable(request.path, request.homes, own)
    secrets = (*request.private, *_secrets(request))
    hidden = [*secrets, *_NEVER, *_closed_by_name(programs)]
    for place, depth in _PUBLIC.items():
        hidden += private_files(place, depth=depth, must_be_public=True)
    config_home = {"XDG_CONFIG_HOME": request.config_home} if request.config_home else {}
    wanted = (
        *_SYSTEM,
        *_PUBLIC,
        *programs,
        *git.readable(Path(directory), request.homes),
        *git.settings(request.homes, config_home),
    )
    found = {path: os.path.realpath(path) for path in wanted if not is_around_a_home(path, request.homes)}
    allowed = [real for real in found.values() if not any(is_below(real, each) for each in hidden)]
    # The paths of `_SYSTEM` in /sys are granted one by one, and so are the files of /proc, by each backend.
    allowed += [path for path in _SYSTEM if path.startswith("/sys/")]
    readable = outermost(tuple(path for path in (*allowed, *own) if Path(path).exists()))
    return ReadOnlyPolicy(
        temporary=f"{scratch}/unapproved-tmp",
        readable=tuple(dict.fromkeys((*readable, *own))),
        hidden=tuple(sorted({path for path in hidden if path not in own})),
        links=tuple((path, real) for path, real in found.items() if path != real and Path(real).exists()),
        keeps_read_override=os.geteuid() == 0 and Path(directory).stat().st_uid != 0,
    )


def _secrets(request: Request) -> list[str]:
    """The usual ones in each home and those of the configuration; not the workspace, nor what it lies in."""
    usual = [f"{home}{entry[1:]}" for entry in SECRETS for home in request.homes]
    found = [os.path.realpath(path) for path in (*usual, *request.hidden)]
    return [path for path in found if path != request.directory]


def _closed_by_name(programs: Iterable[str]) -> list[str]:
    return [
        path
        for directory in programs
        for path in private_files(directory, depth=_SECRETS_IN_TOOLCHAINS_DEPTH, must_be_public=False)
    ]


def request_for(
    *,
    directory: Path,
    scratch: Path,
    private: Iterable[Path],
    hidden: Iterable[str],
    homes: Iterable[str | None],
    env: Mapping[str, str],
) -> Request:
    return Request(
        directory=os.path.realpath(directory),
        scratch=os.path.realpath(scratch),
        private=tuple(os.path.realpath(path) for path in private),
        hidden=tuple(hidden),
        homes=tuple(os.path.realpath(home) for home in homes if home),
        path=env.get("PATH", os.defpath),
        config_home=env.get("XDG_CONFIG_HOME", ""),
    )
