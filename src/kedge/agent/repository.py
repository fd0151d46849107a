"""The state of the repository that a session begins in: branch, changes, the last commits. Quick, or not at all.

It is asked for once a session. Told anew at each step it would change the beginning of every request, and no provider's
cache would hold; a model that needs the state of now asks git.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Mapping
from pathlib import Path

from kedge.agent.context import levels
from kedge.files.environment import absolute_path, possible

GONE_S = 0.5  # for a git that was killed to be gone
LIMIT_S = 1.0  # a repository that takes longer is described by what it is: there
MAX_CHANGES = 20
COMMITS = 5
MAX_LINE = 160
MAX_OUTPUT_BYTES = 64 * 1024

# A repository's own settings must not start programs of its choice just because somebody asks about it.
_GIT = ("git", "--no-optional-locks", "-c", "core.fsmonitor=false", "-c", "core.quotePath=false", "--no-pager")
_ITS_FILTERS = ("--show-scope", "--name-only", "-z", "--get-regexp", r"^filter\..*\.(clean|process|required)$")
# Nor is a missing object fetched, which starts what a remote names; older ones of git know only the second variable.
_ALONE = {"GIT_NO_LAZY_FETCH": "1", "GIT_ALLOW_PROTOCOL": "none", "GIT_TERMINAL_PROMPT": "0"}
_OURS = frozenset({"GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_EXTERNAL_DIFF"})


async def repository_state(directory: Path, env: Mapping[str, str]) -> str | None:
    """A few lines for the model; None where there is no repository."""
    if not await asyncio.to_thread(_is_repository, directory):
        return None
    clean = {name: value for name, value in possible(env).items() if name not in _OURS}
    told = {**clean, **_ALONE, "LC_ALL": "C", "PATH": absolute_path(clean, os.defpath)}
    try:
        async with asyncio.timeout(LIMIT_S):
            told |= _without(await _git(directory, told, "config", *_ITS_FILTERS) or "", told)
            status, commits = await asyncio.gather(
                _git(directory, told, "status", "--porcelain=v1", "--branch", "--ignore-submodules=dirty"),
                _git(directory, told, "log", f"-{COMMITS}", "--format=%h %s", "--no-show-signature"),
            )
    except TimeoutError:
        return "A git repository; its state could not be read in time."
    except OSError:
        return "A git repository; git itself cannot be run here."
    return _described(status, commits) if status is not None else None


def _without(filters: str, env: Mapping[str, str]) -> dict[str, str]:
    """Variables that take away what the repository itself would have files filtered with; the user's own stay."""
    said = filters.split("\0")
    names = sorted({name for scope, name in zip(said[::2], said[1::2], strict=False) if scope in ("local", "worktree")})
    count = env.get("GIT_CONFIG_COUNT", "")
    first = int(count) if count.isdecimal() else 0
    taken = {"GIT_CONFIG_COUNT": str(first + len(names))} if names else {}
    for place, name in enumerate(names, first):
        taken |= {f"GIT_CONFIG_KEY_{place}": name}
        taken |= {f"GIT_CONFIG_VALUE_{place}": "false" if name.endswith(".required") else ""}
    return taken


def _is_repository(directory: Path) -> bool:
    return any((level / ".git").exists() for level in levels(directory))


def _described(status: str, commits: str | None) -> str:
    head, *changes = status.splitlines() or ["## ?"]
    lines = [f"Branch: {_short(head.removeprefix('## '))}"]
    if changes:
        lines.append(f"Changed files ({len(changes)}):")
        lines += [f"  {_short(change)}" for change in changes[:MAX_CHANGES]]
        if len(changes) > MAX_CHANGES:
            lines.append(f"  … and {len(changes) - MAX_CHANGES} more")
    else:
        lines.append("No uncommitted changes.")
    if commits:
        lines.append("Last commits:")
        lines += [f"  {_short(commit)}" for commit in commits.splitlines()]
    return "\n".join(lines)


async def _git(directory: Path, env: Mapping[str, str], *args: str) -> str | None:
    """What git says; None where it fails, as in a repository without a commit."""
    process = await asyncio.create_subprocess_exec(
        *_GIT,
        *args,
        cwd=directory,
        env=env,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    assert process.stdout is not None
    try:
        output = b""
        while len(output) < MAX_OUTPUT_BYTES and (piece := await process.stdout.read(MAX_OUTPUT_BYTES)):
            output += piece
        is_cut = len(output) >= MAX_OUTPUT_BYTES
        if is_cut:
            process.kill()
        code = await process.wait()
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            with contextlib.suppress(TimeoutError):  # of one that not even that ends
                async with asyncio.timeout(GONE_S):
                    await process.wait()
    return output.decode("utf-8", "replace") if code == 0 or is_cut else None


def _short(line: str) -> str:
    return line if len(line) <= MAX_LINE else line[: MAX_LINE - 1] + "…"
