"""The policy of a command that runs without approval: it may read only listed paths.

These are the workspace, the system's programs and public settings, the toolchains on PATH, files that git needs, and
paths that the permission check approved. It may write only to a temporary directory, and has no network.
"""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from kedge.tools.sandbox.outside_paths import find_git_paths, find_git_settings, find_program_paths
from kedge.tools.sandbox.policy import HOMES, SandboxUnavailable, is_around_a_home, is_below, outermost

_SYSTEM = (
    *("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix", "/gnu/store", "/snap"),
    f"{HOMES[0]}/linuxbrew",
    *("/var/lib/dpkg", "/var/lib/rpm", "/var/lib/pacman/local", "/var/lib/apt/lists", "/var/lib/alternatives"),
    *("/var/cache/man", "/lib/apk/db", "/var/cache/fontconfig"),
    # For name resolution, and the programs of NixOS.
    *("/run/systemd/resolve", "/run/resolvconf", "/run/NetworkManager/resolv.conf", "/run/current-system"),
    *("/run/wrappers", "/run/opengl-driver", "/sys/devices/system/cpu", "/sys/devices/system/node"),
)
# In these only files that every user may read, because the server may be root; with the depth to check.
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
    """Paths are absolute and resolved. `hidden` applies inside `readable`, unless a readable path is deeper."""

    temporary: str  # each command gets a writable directory below
    readable: tuple[str, ...]
    hidden: tuple[str, ...]
    links: tuple[tuple[str, str], ...] = ()  # readable paths that are links, and their targets
    keeps_read_override: bool = False  # for root, if the workspace belongs to another user


class PolicyInputs(msgspec.Struct, frozen=True, kw_only=True):
    """The inputs of a policy; equal ones share a cached policy."""

    directory: str
    scratch: str
    private: tuple[str, ...]
    hidden: tuple[str, ...]  # configured, besides the usual secrets
    homes: tuple[str, ...]
    path: str
    config_home: str


_cache: dict[PolicyInputs, tuple[float, ReadOnlyPolicy]] = {}


def get_policy(inputs: PolicyInputs, approved: Iterable[str] = ()) -> ReadOnlyPolicy:
    """The policy, with the paths that the permission check approved. Raises SandboxUnavailable.

    It lists directories, so do not call it on the event loop."""
    now = time.monotonic()
    made_at, policy = _cache.get(inputs, (float("-inf"), None))
    if policy is None or now - made_at > _NEW_AFTER_S:
        policy = _make_policy(inputs)
        _cache.pop(inputs, None)
        _cache[inputs] = (now, policy)
        while len(_cache) > _MAX_CACHED:
            _cache.pop(next(iter(_cache)), None)
    Path(policy.temporary).mkdir(mode=0o700, parents=True, exist_ok=True)
    return _add_readable(policy, approved, inputs.homes)


def _add_readable(policy: ReadOnlyPolicy, paths: Iterable[str], homes: tuple[str, ...]) -> ReadOnlyPolicy:
    """The policy with more readable paths; the same one if they are readable already, because its rules are cached."""
    added = [
        path
        for path in dict.fromkeys(map(os.path.realpath, paths))
        if not any(is_below(path, each) for each in (*policy.readable, *policy.hidden))
        and not is_around_a_home(path, homes)
        and Path(path).exists()
    ]
    return msgspec.structs.replace(policy, readable=(*policy.readable, *outermost(tuple(added)))) if added else policy


def describe(*, is_planning: bool) -> str:
    """For the model, when a command failed."""
    bounds = "it ran in the read-only sandbox: no network, and writing only to $TMPDIR"
    if is_planning:
        return f"{bounds}; in mode plan there is no other way to run a command"
    return f"{bounds}. If it failed because of that, call bash again with unsandboxed: true: the user is asked"


def _make_policy(inputs: PolicyInputs) -> ReadOnlyPolicy:
    directory, scratch = inputs.directory, inputs.scratch
    if directory == "/" or any(is_below(directory, each) for each in _NEVER):
        raise SandboxUnavailable("the workspace is the root directory, or in /proc, /sys or /dev")
    own = (directory, scratch)
    programs = find_program_paths(inputs.path, inputs.homes, own)
    secrets = (*inputs.private, *_find_secrets(inputs))
    hidden = [*secrets, *_NEVER, *_find_secrets_by_name(programs)]
    for public, depth in _PUBLIC.items():
        hidden += find_private_files(public, depth=depth, must_be_public=True)
    config_home = {"XDG_CONFIG_HOME": inputs.config_home} if inputs.config_home else {}
    wanted = (
        *_SYSTEM,
        *_PUBLIC,
        *programs,
        *find_git_paths(Path(directory), inputs.homes),
        *find_git_settings(inputs.homes, config_home),
    )
    found = {path: os.path.realpath(path) for path in wanted if not is_around_a_home(path, inputs.homes)}
    allowed = [real for real in found.values() if not any(is_below(real, each) for each in hidden)]
    # Backends allow the paths of `_SYSTEM` in /sys, and the files of /proc, one by one.
    allowed += [path for path in _SYSTEM if path.startswith("/sys/")]
    readable = outermost(tuple(path for path in (*allowed, *own) if Path(path).exists()))
    return ReadOnlyPolicy(
        temporary=f"{scratch}/unapproved-tmp",
        readable=tuple(dict.fromkeys((*readable, *own))),
        hidden=tuple(sorted({path for path in hidden if path not in own})),
        links=tuple((path, real) for path, real in found.items() if path != real and Path(real).exists()),
        keeps_read_override=os.geteuid() == 0 and Path(directory).stat().st_uid != 0,
    )


def _find_secrets(inputs: PolicyInputs) -> list[str]:
    """The usual secrets in each home and those of the configuration, except the workspace itself."""
    usual = [f"{home}{entry[1:]}" for entry in SECRETS for home in inputs.homes]
    found = [os.path.realpath(path) for path in (*usual, *inputs.hidden)]
    return [path for path in found if path != inputs.directory]


def _find_secrets_by_name(programs: Iterable[str]) -> list[str]:
    return [
        path
        for directory in programs
        for path in find_private_files(directory, depth=_SECRETS_IN_TOOLCHAINS_DEPTH, must_be_public=False)
    ]


SECRETS = (
    # keys and key stores
    *("~/.ssh", "~/.gnupg", "~/.password-store", "~/.local/share/keyrings", "~/.config/op"),
    # clouds and clusters
    *("~/.aws", "~/.azure", "~/.config/gcloud", "~/.oci", "~/.kube", "~/.docker/config.json", "~/.vault-token"),
    *("~/.terraform.d/credentials.tfrc.json", "~/.config/doctl", "~/.fly", "~/.config/containers/auth.json"),
    # code hosts and package registries
    *("~/.netrc", "~/.git-credentials", "~/.config/git/credentials", "~/.config/gh", "~/.config/hub"),
    *("~/.config/glab-cli", "~/.npmrc", "~/.pypirc", "~/.gem/credentials"),
    *("~/.cargo/credentials", "~/.cargo/credentials.toml", "~/.m2/settings-security.xml"),
    # coding agents, including Kedge
    *("~/.config/kedge", "~/.local/share/kedge", "~/.claude", "~/.codex", "~/.gemini"),
    # browsers and mail
    *("~/.mozilla", "~/.thunderbird", "~/.config/google-chrome", "~/.config/chromium"),
    *("~/.config/BraveSoftware", "~/.config/microsoft-edge", "~/.config/vivaldi", "~/.config/opera"),
    *("~/snap/firefox", "~/snap/chromium", "~/.var/app/org.mozilla.firefox", "~/.var/app/com.google.Chrome"),
    # histories
    *("~/.bash_history", "~/.zsh_history", "~/.local/share/fish/fish_history", "~/.python_history", "~/.psql_history"),
    *("~/.mysql_history", "~/.node_repl_history", "~/.lesshst", "~/.viminfo"),
    *("~/.pgpass", "~/.my.cnf"),
)

# Names of files with keys and passwords, in system settings and toolchains.
_SECRET_NAME = re.compile(
    r"^(g?shadow-?|passwd-|group-|opasswd|sudoers.*|id_(rsa|dsa|ecdsa|ed25519)|.*_key|.*\.(key|keytab|p12|pfx|jks|kdbx)"
    r"|.*secrets?(\.\w+)?|.*credentials?(\.\w+)?|.*passwd\.client|sasl_passwd.*|\.?netrc|\.npmrc|\.pypirc|\.pgpass"
    r"|auth\.json|debian\.cnf|msmtprc|machine-id-secret|private|system-connections)$",
    re.IGNORECASE,
)
_MAX_ENTRIES = 50_000


def find_private_files(directory: str, *, depth: int, must_be_public: bool) -> tuple[str, ...]:
    """Files and directories below a directory whose names look like secrets or, with `must_be_public`, that not every
    user may read: a server run by root could read those."""
    return tuple(_private_files(directory, depth, must_be_public, [_MAX_ENTRIES]))


def _private_files(directory: str, depth: int, must_be_public: bool, left: list[int]) -> Iterator[str]:
    try:
        entries = list(os.scandir(directory))
    except OSError:
        return
    left[0] -= len(entries)
    for entry in entries:
        if entry.is_symlink():
            continue
        is_directory = entry.is_dir(follow_symlinks=False)
        if _SECRET_NAME.match(entry.name) or (must_be_public and not _is_public(entry, is_directory)):
            yield entry.path
        elif is_directory and left[0] <= 0:
            yield entry.path  # too many entries to check
        elif is_directory and depth > 1:
            yield from _private_files(entry.path, depth - 1, must_be_public, left)


def _is_public(entry: os.DirEntry[str], is_directory: bool) -> bool:
    try:
        mode = entry.stat(follow_symlinks=False).st_mode
    except OSError:
        return False
    wanted = stat.S_IROTH | stat.S_IXOTH if is_directory else stat.S_IROTH
    return mode & wanted == wanted
