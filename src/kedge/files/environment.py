"""Environments for the programs that Kedge starts itself.

A caller's variables come over the wire and may be anything. Programs are searched outside the workspace, even if `PATH`
names a directory in it (an activated `.venv`), because commands can write there.

Git must not start programs that a repository chooses. `harden_git_env` disables those with fixed names: hooks,
fsmonitor, pagers, editors, ssh, bare repositories. Filters and diff drivers are named by the repository: list them with
`git LIST_PROGRAMS` and pass the output to `disable_programs`. Submodules have their own configuration, which
`.gitmodules` may change: `--ignore-submodules=dirty` keeps git out of them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

StrPath = str | bytes | os.PathLike[str]

# Settings in the environment override every configuration file. The programs here are git's defaults, so that a normal
# set-up still works.
_SETTINGS = (
    ("core.fsmonitor", "false"),
    ("core.hooksPath", "/dev/null"),
    ("credential.helper", ""),  # empties the list
    ("diff.ignoreSubmodules", "dirty"),  # starts no git inside a submodule
    ("gpg.program", "gpg"),
    ("gpg.openpgp.program", "gpg"),
    ("gpg.x509.program", "gpgsm"),
    ("gpg.ssh.program", "ssh-keygen"),
    ("log.showSignature", "false"),
    ("safe.bareRepository", "explicit"),
    ("status.submoduleSummary", "false"),
    ("submodule.recurse", "false"),
)
_SWITCHES = {
    "GIT_PAGER": "cat",
    "GIT_EDITOR": "true",
    "GIT_SEQUENCE_EDITOR": "true",
    "GIT_ASKPASS": "false",
    "GIT_SSH_COMMAND": "false",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_OPTIONAL_LOCKS": "0",  # reading writes no index, which would run a hook
    # Fetching a missing object would start a program that a remote names. Older versions know only the second.
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_ALLOW_PROTOCOL": "none",
}
# Every other GIT_ variable could point git at another repository or start a program.
_KEPT = frozenset({"GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM", "GIT_CONFIG_NOSYSTEM", "GIT_CEILING_DIRECTORIES"})
_PAIRS = ("GIT_CONFIG_KEY_", "GIT_CONFIG_VALUE_")

# For git before 2.31, which ignores settings in the environment.
GIT_OPTIONS = ("--no-optional-locks", "--no-pager", "-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null")

_PROGRAMS = (
    r"^(core\.alternaterefscommand|diff\.external|interactive\.difffilter"
    r"|filter\..*\.(clean|smudge|process|required)|(diff|merge|trailer|tar|hook)\..*\.(command|textconv|driver|cmd)"
    r"|submodule\..*\.ignore|(man|browser)\..*\.(cmd|path))$"
)
LIST_PROGRAMS = ("config", "--show-scope", "--name-only", "-z", "--get-regexp", _PROGRAMS)
_REPOSITORY_SCOPES = frozenset({"local", "worktree"})


def drop_invalid_variables(env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that a process can be started with."""
    return {name: value for name, value in env.items() if _is_valid_variable(name, value)}


def _is_valid_variable(name: str, value: str) -> bool:
    if not name or "=" in name or "\0" in name or "\0" in value:
        return False
    try:
        name.encode("utf-8", "surrogateescape")
        value.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return False
    return True


def safe_path(path: str, outside_of: Sequence[StrPath]) -> str:
    """Return the entries of a `PATH` that are absolute and outside these directories. Blocks."""
    roots = [os.path.realpath(os.fsdecode(each)) for each in outside_of]
    entries = [entry for entry in dict.fromkeys(path.split(":")) if entry.startswith("/") and "\0" not in entry]
    return ":".join(entry for entry in entries if not _is_inside(entry, roots))


def with_safe_path(env: Mapping[str, str], workspace: StrPath) -> dict[str, str]:
    return {**env, "PATH": safe_path(env.get("PATH", os.defpath), [workspace])}


def find_program(name: str, env: Mapping[str, str], *outside_of: StrPath) -> str | None:
    """Return the path of a program that is neither inside these directories nor a link into them. Blocks."""
    roots = [os.path.realpath(os.fsdecode(each)) for each in outside_of]
    for directory in safe_path(env.get("PATH", os.defpath), outside_of).split(":"):
        found = f"{directory}/{name}"
        if directory and os.path.isfile(found) and os.access(found, os.X_OK) and not _is_inside(found, roots):
            return found
    return None


def _is_inside(path: str, roots: Sequence[str]) -> bool:
    """Return whether a path is in one of these directories, by its name or with links resolved."""
    names = (os.path.normpath(path), os.path.realpath(path))
    return any(name == root or name.startswith(root.rstrip("/") + "/") for name in names for root in roots)


def harden_git_env(env: Mapping[str, str]) -> dict[str, str]:
    """Return `env` with variables that keep git from starting programs with fixed names.

    The caller's own `GIT_CONFIG_COUNT` entries stay, before ours.
    """
    count = _count(env)
    kept = {f"{name}{index}" for name in _PAIRS for index in range(count)} | _KEPT
    clean = {name: value for name, value in env.items() if not name.startswith("GIT_") or name in kept}
    clean |= {"GIT_CONFIG_COUNT": str(count), **_SWITCHES}
    return _with_settings(clean, _SETTINGS)


def disable_programs(env: Mapping[str, str], listed: str) -> dict[str, str]:
    """Return `env` with settings that override the repository's programs; `listed` is the output of `LIST_PROGRAMS`."""
    fields = listed.split("\0")
    names = {name for scope, name in zip(fields[::2], fields[1::2], strict=False) if scope in _REPOSITORY_SCOPES}
    return _with_settings(dict(env), [(name, _replacement(name)) for name in sorted(names)])


def _replacement(name: str) -> str:
    """Return a value with which git skips the program, or fails if it cannot."""
    last = name.rpartition(".")[2]
    if name.startswith("submodule."):
        return "dirty"
    if name.startswith("filter."):
        return "false" if last == "required" else ""
    return "cat" if last in ("textconv", "difffilter") else "false"


def _with_settings(env: dict[str, str], settings: Sequence[tuple[str, str]]) -> dict[str, str]:
    first = _count(env)
    for index, (name, value) in enumerate(settings, first):
        env |= {f"GIT_CONFIG_KEY_{index}": name, f"GIT_CONFIG_VALUE_{index}": value}
    return env | {"GIT_CONFIG_COUNT": str(first + len(settings))}


def _count(env: Mapping[str, str]) -> int:
    count = env.get("GIT_CONFIG_COUNT", "")
    number = int(count) if count.isdecimal() and len(count) < 5 else 0
    return number if all(f"{name}{index}" in env for name in _PAIRS for index in range(number)) else 0
