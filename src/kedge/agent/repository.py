"""The git state at the start of a session: branch, changes, the last commits.

It is read once per session: a new state in each step would change the beginning of every request, which the provider's
cache needs to stay the same. A model that needs the current state can run git.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from kedge.agent.context_files import repository_levels
from kedge.files.environment import (
    GIT_OPTIONS,
    LIST_PROGRAMS,
    disable_programs,
    drop_invalid_variables,
    find_program,
    harden_git_env,
    with_safe_path,
)

KILL_S = 0.5  # for a killed git to exit
LIMIT_S = 1.0  # a slower repository is reported without its state
MAX_CHANGES = 20
COMMITS = 5
MAX_LINE = 160
MAX_OUTPUT_BYTES = 64 * 1024
NO_GIT = "A git repository; git itself cannot be run here."

_STATUS = ("status", "--porcelain=v1", "--branch", "--ignore-submodules=dirty")
_LOG = ("log", f"-{COMMITS}", "--format=%h %s", "--no-show-signature")


async def describe_repository(directory: Path, env: Mapping[str, str]) -> str | None:
    """Return a few lines for the model; None if there is no repository."""
    if not await asyncio.to_thread(_is_repository, directory):
        return None
    clean = {**harden_git_env(drop_invalid_variables(env)), "LC_ALL": "C"}
    clean = await asyncio.to_thread(with_safe_path, clean, directory)
    program = await asyncio.to_thread(find_program, "git", clean, directory)
    if program is None:
        return NO_GIT
    git = partial(_run_git, program, directory)
    try:
        async with asyncio.timeout(LIMIT_S):
            clean = disable_programs(clean, await git(clean, *LIST_PROGRAMS) or "")
            status, commits = await asyncio.gather(git(clean, *_STATUS), git(clean, *_LOG))
    except TimeoutError:
        return "A git repository; its state could not be read in time."
    except OSError:
        return NO_GIT
    return _format_state(status, commits) if status is not None else None


def _is_repository(directory: Path) -> bool:
    return any((level / ".git").exists() for level in repository_levels(directory))


def _format_state(status: str, commits: str | None) -> str:
    head, *changes = status.splitlines() or ["## ?"]
    lines = [f"Branch: {_shorten(head.removeprefix('## '))}"]
    if changes:
        lines.append(f"Changed files ({len(changes)}):")
        lines += [f"  {_shorten(change)}" for change in changes[:MAX_CHANGES]]
        if len(changes) > MAX_CHANGES:
            lines.append(f"  … and {len(changes) - MAX_CHANGES} more")
    else:
        lines.append("No uncommitted changes.")
    if commits:
        lines.append("Last commits:")
        lines += [f"  {_shorten(commit)}" for commit in commits.splitlines()]
    return "\n".join(lines)


async def _run_git(program: str, directory: Path, env: Mapping[str, str], *args: str) -> str | None:
    """Return git's output; None if it fails, as in a repository without a commit."""
    process = await asyncio.create_subprocess_exec(
        program,
        *GIT_OPTIONS,
        *("-c", "core.quotePath=false"),
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
            with contextlib.suppress(TimeoutError):  # a process that cannot be killed
                async with asyncio.timeout(KILL_S):
                    await process.wait()
    return output.decode("utf-8", "replace") if code == 0 or is_cut else None


def _shorten(line: str) -> str:
    return line if len(line) <= MAX_LINE else line[: MAX_LINE - 1] + "…"
