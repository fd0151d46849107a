"""What the model is told about itself, its place and the rules of this project.

What changes least comes first, and nothing in it changes from step to step or from prompt to prompt within a day,
unless somebody changed a context file: a beginning that stays the same is read from the provider's cache.
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

from kedge.agent.context_files import ContextFile, context_files
from kedge.agent.repository import repository_state
from kedge.config.schema import Config
from kedge.protocol.runs import Mode

REMEMBERED_SESSIONS = 500  # the state of their repositories, a kilobyte each


class Role(msgspec.Struct, frozen=True, kw_only=True):
    """Who is spoken to. `own` replaces the text on how to work; everything after that is told all the same."""

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


def system_prompt(role: Role, place: Surroundings) -> str:
    if role.is_tiny:  # it would be lost in more
        return "\n\n".join([role.own or prompt_text("tiny"), *_output(role)])
    parts = [role.own or prompt_text("agent" if role.is_sub_agent else "work")]
    if not role.has_tools:
        parts.append(prompt_text("no_tools"))
    if role.mode == "plan" and not role.is_sub_agent:
        parts.append(prompt_text("plan"))
    if not role.is_attended and not role.is_sub_agent:
        parts.append(prompt_text("unattended"))
    parts += [_file(each) for each in place.files]
    parts += _output(role)
    parts.append(
        _filled(
            "environment",
            directory=str(place.directory),
            platform=_platform(),
            shell=place.shell,
            date=place.today.isoformat(),
        )
    )
    if place.repository is not None:
        parts.append(f"Git, as it was when this session began (ask git for the state of now):\n{place.repository}")
    return "\n\n".join(parts)


class Repositories:
    """The state of a repository as each session found it."""

    def __init__(self) -> None:
        self._known: dict[str, str | None] = {}

    async def of(self, session_id: str, directory: Path, env: Mapping[str, str]) -> str | None:
        if session_id not in self._known:
            self._known[session_id] = await repository_state(directory, env)
            while len(self._known) > REMEMBERED_SESSIONS:
                del self._known[next(iter(self._known))]
        return self._known[session_id]


async def look_around(
    repositories: Repositories,
    session_id: str,
    directory: Path,
    env: Mapping[str, str],
    config: Config,
    today: date,
) -> Surroundings:
    files, repository = await asyncio.gather(
        context_files(directory, config, env), repositories.of(session_id, directory, env)
    )
    shell = Path(env.get("SHELL") or "/bin/sh").name
    return Surroundings(directory=directory, today=today, shell=shell, files=files, repository=repository)


@cache
def prompt_text(name: str) -> str:
    """A prompt of ours, from its file."""
    return (Path(__file__).parent / "prompts" / f"{name}.md").read_text(encoding="utf-8").strip()


def _filled(name: str, **values: str) -> str:
    return Template(prompt_text(name)).substitute(values)


def _output(role: Role) -> list[str]:
    return [] if role.output_schema is None else [_filled("output", schema=role.output_schema)]


def _file(file: ContextFile) -> str:
    cut = "\n[It goes on: read the file when you need the rest.]" if file.is_cut else ""
    return f"# Instructions from {file.path}\n\n{file.text}{cut}"


@cache
def _platform() -> str:
    return f"{platform.system()} {platform.machine()}".strip()
