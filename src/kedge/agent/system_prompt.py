"""The system prompt: how to work, context files, and the environment.

The most stable text comes first, and nothing changes between steps, or between prompts of a day, unless a context file
changes: providers cache a prefix that stays the same.
"""

from __future__ import annotations

import asyncio
import platform
from collections.abc import Mapping, Sequence
from datetime import date
from functools import cache
from pathlib import Path
from string import Template

import msgspec

from kedge.agent.context_files import ContextFile, load_context_files
from kedge.agent.repository import describe_repository
from kedge.config.schema import Config
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
