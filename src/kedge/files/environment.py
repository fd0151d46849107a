"""Which variables a process can be given, and where Kedge's own programs are found.

A caller's variables are whatever came over the wire. What commands can write must not decide what Kedge itself starts:
programs are looked for outside of the workspace, also where `PATH` names a directory in it (an activated `.venv`).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

StrPath = str | bytes | os.PathLike[str]


def possible(env: Mapping[str, str]) -> dict[str, str]:
    """Those that can be, before anything is started with them."""
    return {name: value for name, value in env.items() if is_possible(name, value)}


def is_possible(name: str, value: str) -> bool:
    if not name or "=" in name or "\0" in name or "\0" in value:
        return False
    try:
        name.encode("utf-8", "surrogateescape")
        value.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return False
    return True


def env_outside(env: Mapping[str, str], workspace: StrPath) -> dict[str, str]:
    """`env` with a `PATH` that has neither relative directories nor any that lies in the workspace. Blocks."""
    inside = _real(workspace)
    places = [each for each in env.get("PATH", os.defpath).split(":") if each.startswith("/")]
    return {**env, "PATH": ":".join(each for each in places if not _is_below(_real(each), inside))}


def find_program(name: str, env: Mapping[str, str], workspace: StrPath) -> str | None:
    """The absolute path of a program that neither lies in the workspace nor is a link to there. Blocks."""
    inside = _real(workspace)
    for place in env_outside(env, workspace)["PATH"].split(":"):
        found = f"{place}/{name}"
        if place and os.path.isfile(found) and os.access(found, os.X_OK) and not _is_below(_real(found), inside):
            return found
    return None


def _real(path: StrPath) -> str:
    return os.path.realpath(os.fsdecode(path))


def _is_below(path: str, directory: str) -> bool:
    return path == directory or path.startswith(directory.rstrip("/") + "/")


# --- The environment in which git starts no program that a repository chooses.

# Later settings win, and those of the environment come after every file. The programs here are git's own defaults, so
# that the user's set-up goes on to work where only a repository would have chosen another.
_SETTINGS = (
    ("core.fsmonitor", "false"),
    ("core.hooksPath", "/dev/null"),
    ("credential.helper", ""),  # empties the list
    ("diff.ignoreSubmodules", "dirty"),  # no git is started inside a submodule
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
    # A missing object is not fetched, which would start what a remote names; older versions know only the second.
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_ALLOW_PROTOCOL": "none",
}
# The caller's own configuration. Every other GIT_ variable could point git at another repository or start a program.
_KEPT = frozenset({"GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM", "GIT_CONFIG_NOSYSTEM", "GIT_CEILING_DIRECTORIES"})
_PAIRS = ("GIT_CONFIG_KEY_", "GIT_CONFIG_VALUE_")

# For git before 2.31, which reads no settings from the environment.
GIT_OPTIONS = ("--no-optional-locks", "--no-pager", "-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null")

_PROGRAMS = (
    r"^(core\.alternaterefscommand|diff\.external|interactive\.difffilter"
    r"|filter\..*\.(clean|smudge|process|required)|(diff|merge|trailer|tar|hook)\..*\.(command|textconv|driver|cmd)"
    r"|submodule\..*\.ignore|(man|browser)\..*\.(cmd|path))$"
)
LIST_PROGRAMS = ("config", "--show-scope", "--name-only", "-z", "--get-regexp", _PROGRAMS)
_OF_THE_REPOSITORY = frozenset({"local", "worktree"})


def hardened_git_env(env: Mapping[str, str]) -> dict[str, str]:
    """`env` with git's switches set so that reading a repository starts nothing of its choice.

    The caller's own `GIT_CONFIG_COUNT` entries are kept, before ours.
    """
    count = _count(env)
    kept = {f"{name}{place}" for name in _PAIRS for place in range(count)} | _KEPT
    clean = {name: value for name, value in env.items() if not name.startswith("GIT_") or name in kept}
    clean |= {"GIT_CONFIG_COUNT": str(count), **_SWITCHES}
    return _with_settings(clean, _SETTINGS)


def without_programs(env: Mapping[str, str], listed: str) -> dict[str, str]:
    """`env` with the programs replaced that the repository configures; `listed` is the output of `LIST_PROGRAMS`."""
    words = listed.split("\0")
    names = {name for scope, name in zip(words[::2], words[1::2], strict=False) if scope in _OF_THE_REPOSITORY}
    return _with_settings(dict(env), [(name, _replacement(name)) for name in sorted(names)])


def _replacement(name: str) -> str:
    """A value with which git does without the program, or fails where it cannot."""
    last = name.rpartition(".")[2]
    if name.startswith("submodule."):
        return "dirty"
    if name.startswith("filter."):
        return "false" if last == "required" else ""
    return "cat" if last in ("textconv", "difffilter") else "false"


def _with_settings(env: dict[str, str], settings: Sequence[tuple[str, str]]) -> dict[str, str]:
    first = _count(env)
    for place, (name, value) in enumerate(settings, first):
        env |= {f"GIT_CONFIG_KEY_{place}": name, f"GIT_CONFIG_VALUE_{place}": value}
    return env | {"GIT_CONFIG_COUNT": str(first + len(settings))}


def _count(env: Mapping[str, str]) -> int:
    count = env.get("GIT_CONFIG_COUNT", "")
    number = int(count) if count.isdecimal() and len(count) < 5 else 0
    return number if all(f"{name}{place}" in env for name in _PAIRS for place in range(number)) else 0
