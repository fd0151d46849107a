"""The system prompt: how to work, context files, and the environment.

The most stable text comes first, and nothing changes between steps, or between prompts of a day, unless a context file
changes: providers cache a prefix that stays the same. So the git state is read once per session; a model that needs the
current one can run git.
"""

from __future__ import annotations

import asyncio
import contextlib
import platform
from collections.abc import Mapping, Sequence
from datetime import date
from functools import cache, partial
from pathlib import Path
from string import Template

import msgspec

from kedge.agent.context_files import ContextFile, load_context_files, repository_levels
from kedge.config.schema import Config
from kedge.files.environment import (
    GIT_OPTIONS,
    LIST_PROGRAMS,
    disable_programs,
    drop_invalid_variables,
    find_program,
    harden_git_env,
    with_safe_path,
)
from kedge.protocol.runs import Mode

MAX_SESSIONS = 500  # whose git state is remembered, a kilobyte each


class Role(msgspec.Struct, frozen=True, kw_only=True):
    """Whom the prompt is for. `own` replaces the text on how to work, but nothing after it."""

    is_sub_agent: bool = False
    is_tiny: bool = False
    has_tools: bool = True
    mode: Mode = "ask"
    is_attended: bool = True
    own: str | None = None
    output_schema: str | None = None


class Surroundings(msgspec.Struct, frozen=True, kw_only=True):
    directory: Path
    today: date
    shell: str
    files: Sequence[ContextFile] = ()
    repository: str | None = None


def build_system_prompt(role: Role, surroundings: Surroundings) -> str:
    if role.is_tiny:  # a longer prompt would confuse it
        return "\n\n".join([role.own or load_prompt("tiny"), *_format_output_section(role)])
    sections = [role.own or load_prompt("agent" if role.is_sub_agent else "work")]
    if not role.has_tools:
        sections.append(load_prompt("no_tools"))
    if role.mode == "plan" and not role.is_sub_agent:
        sections.append(load_prompt("plan"))
    if not role.is_attended and not role.is_sub_agent:
        sections.append(load_prompt("unattended"))
    sections += [_format_file(each) for each in surroundings.files]
    sections += _format_output_section(role)
    sections.append(
        _fill_template(
            "environment",
            directory=str(surroundings.directory),
            platform=_platform(),
            shell=surroundings.shell,
            date=surroundings.today.isoformat(),
        )
    )
    if surroundings.repository is not None:
        sections.append(
            f"Git, as it was when this session began (ask git for the state of now):\n{surroundings.repository}"
        )
    return "\n\n".join(sections)


class GitStates:
    """The state of the repository at the start of each session."""

    def __init__(self) -> None:
        self._known: dict[str, str | None] = {}

    async def get(self, session_id: str, directory: Path, env: Mapping[str, str]) -> str | None:
        if session_id not in self._known:
            self._known[session_id] = await describe_repository(directory, env)
            while len(self._known) > MAX_SESSIONS:
                del self._known[next(iter(self._known))]
        return self._known[session_id]


async def read_surroundings(
    git_states: GitStates,
    session_id: str,
    directory: Path,
    env: Mapping[str, str],
    config: Config,
    today: date,
) -> Surroundings:
    files, repository = await asyncio.gather(
        load_context_files(directory, config, env), git_states.get(session_id, directory, env)
    )
    shell = Path(env.get("SHELL") or "/bin/sh").name
    return Surroundings(directory=directory, today=today, shell=shell, files=files, repository=repository)


@cache
def load_prompt(name: str) -> str:
    return (Path(__file__).parent / "prompts" / f"{name}.md").read_text(encoding="utf-8").strip()


def _fill_template(name: str, **values: str) -> str:
    return Template(load_prompt(name)).substitute(values)


def _format_output_section(role: Role) -> list[str]:
    return [] if role.output_schema is None else [_fill_template("output", schema=role.output_schema)]


def _format_file(file: ContextFile) -> str:
    cut = "\n[It goes on: read the file when you need the rest.]" if file.is_cut else ""
    return f"# Instructions from {file.path}\n\n{file.text}{cut}"


@cache
def _platform() -> str:
    return f"{platform.system()} {platform.machine()}".strip()


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
    """Return a few lines about branch, changes and last commits for the model; None if there is no repository."""
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
