"""What the model of a session knows of its surroundings: git state, date, instructions, and what it may do.

They are stored as the session first saw them, so that its system prompt stays the same for its whole life, also after a
restart: providers cache a prefix that stays the same, and what the model itself changes later is not taken for what was
there before. What changes is told in notes, each sent with the message at the end of the conversation at that time.
"""

from __future__ import annotations

import asyncio
import contextlib
import platform
from collections.abc import Mapping, Sequence
from datetime import date
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from kedge.agent.catalog import UNKNOWN_CHARS, Entry, format_entries
from kedge.agent.context_files import (
    MAX_ALL_BYTES,
    ContextFile,
    find_shown_files,
    format_file,
    load_context_files,
    repository_levels,
)
from kedge.agent.notes import SessionNotes
from kedge.config.schema import Config
from kedge.engine.turn import TurnContext
from kedge.files.environment import (
    GIT_OPTIONS,
    LIST_PROGRAMS,
    disable_programs,
    drop_invalid_variables,
    find_program,
    harden_git_env,
    with_safe_path,
)
from kedge.models.wires.history import is_summary
from kedge.protocol.messages import Message, replace_surrogates
from kedge.protocol.text_safety import one_line
from kedge.tools.process.spawn import find_shell

_NOTE = "<system-note>\n{text}\n</system-note>"


class Surroundings(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    directory: str
    today: date
    shell: str  # that runs the commands
    platform: str = ""
    permissions: str = ""  # what the model may do; empty if it has no tools
    files: Sequence[ContextFile] = ()
    repository: str | None = None
    skills: Sequence[Entry] = ()
    agents: Sequence[Entry] = ()
    languages: bool = False  # whether language servers are installed: then their tools are offered


_RESTORED = (
    "The user restored these files to an earlier state, so changes that you made to them no longer exist. View a file "
    "again before you rely on its content:"
)
MAX_RESTORED, MAX_PATH_CHARS = 50, 300
_CHANGED_PERMISSIONS = "What you may do has changed. From now on, instead of what was said before: {}"


class _Told(NamedTuple):
    today: date
    permissions: str
    files: Mapping[str, str]
    skills: Mapping[str, str]
    agents: Mapping[str, str]


class SessionSurroundings:
    """The surroundings that a session first saw, those of this turn, and the notes on the difference."""

    def __init__(self, ctx: TurnContext, first: Surroundings, current: Surroundings, notes: SessionNotes) -> None:
        self._ctx = ctx
        self.first = first
        self.notes = notes
        self._current = current

    @classmethod
    async def load(
        cls, ctx: TurnContext, current: Surroundings, env: Mapping[str, str], *, is_new: bool
    ) -> SessionSurroundings:
        """Read what the session first saw, or store the current surroundings as that.

        `is_new`: nothing has happened in the session yet, so the state of the repository is that of its beginning.
        """
        stored = await ctx.surroundings()
        if stored is None:
            repository = await describe_repository(ctx.directory, env) if is_new else None
            stored = await ctx.keep_surroundings(
                msgspec.json.encode(msgspec.structs.replace(current, repository=repository))
            )
        return cls(ctx, msgspec.json.decode(stored, type=Surroundings), current, await SessionNotes.load(ctx))

    async def note_changes(self, history: Sequence[Message]) -> None:
        """Store a note with the last prompt, summary or result if something changed since the model last learned it.

        Earlier messages get none: their place in the provider's cache would be lost. In the middle of a turn only what
        the model may do can change.
        """
        last = history[-1] if history else None
        if last is None or not (last.role in ("user", "tool") or is_summary(last)):
            return
        told, known = self._find_told(history), self.notes.of(last.id)
        earlier = "" if known is None else known.text
        if last.role == "tool" or earlier:
            permissions = self._current.permissions
            if permissions != told.permissions:
                text = _NOTE.format(text=_CHANGED_PERMISSIONS.format(permissions))
                await self.notes.change(last.id, text=f"{earlier}\n\n{text}".lstrip(), permissions=permissions)
            return
        is_prompt = last.role == "user" and len(history) > 1
        restored = await self._ctx.restored_files(last.id) if is_prompt else []
        changes = _describe_changes(told, self._current, restored)
        if changes is not None:
            await self.notes.change(last.id, **changes)

    def change_permissions(self, permissions: str) -> None:
        """Have the next note tell what the model may do from now on."""
        self._current = msgspec.structs.replace(self._current, permissions=permissions)

    @property
    def agents(self) -> Sequence[Entry]:
        """The agents that the tools name: the first ones, so that the tools stay the same."""
        return self.first.agents or self._current.agents

    @property
    def has_skills(self) -> bool:
        return bool(self.first.skills or self._current.skills)

    def list_digests(self) -> dict[str, str]:
        """Return the digests of the context files that the system prompt and the notes tell, by path."""
        return _list_digests(self.first.files) | _list_digests(self._current.files)

    def _find_told(self, history: Sequence[Message]) -> _Told:
        """Return what the model knows by the system prompt, and by the notes and results that it still sees."""
        today, permissions = self.first.today, self.first.permissions
        skills, agents = _list_entries(self.first.skills), _list_entries(self.agents)
        files = _list_digests(self.first.files)
        current = _list_digests(self._current.files)
        for message in history:
            if (note := self.notes.of(message.id)) is not None:
                today, permissions = note.today or today, note.permissions or permissions
                files |= note.files
                skills |= note.skills
                agents |= note.agents
            files |= {path: digest for path, digest in find_shown_files([message]).items() if path in current}
        return _Told(today, permissions, files, skills, agents)


def _describe_changes(told: _Told, current: Surroundings, restored: Sequence[str]) -> dict[str, Any] | None:
    """Return the fields of a note about what changed; None if nothing did. `restored`: files that an undo restored."""
    digests = _list_digests(current.files)
    changed = {path: digest for path, digest in digests.items() if told.files.get(path) != digest}
    removed = [path for path, digest in told.files.items() if digest and path not in digests]
    sections: list[str] = []
    is_other_day = current.today != told.today
    if is_other_day:
        sections.append(f"The date is now {current.today.isoformat()}.")
    if restored:
        sections.append(_describe_restored(restored))
    permissions = current.permissions if current.permissions != told.permissions else ""
    if permissions:
        sections.append(_CHANGED_PERMISSIONS.format(permissions))
    if removed:
        sections.append(f"Removed, so that their instructions no longer apply: {', '.join(removed)}")
    sections += [
        format_file(file, "as they are now") for file in current.files if not changed.keys().isdisjoint(file.paths)
    ]
    skills = _find_changed(told.skills, _list_entries(current.skills))
    agents = _find_changed(told.agents, _list_entries(current.agents))
    sections += [*_describe_entries("skill", skills), *_describe_entries("sub-agent", agents)]
    if not sections:
        return None
    return {
        "text": _NOTE.format(text="\n\n".join(sections)),
        "today": current.today if is_other_day else None,
        "permissions": permissions,
        "files": {**changed, **dict.fromkeys(removed, "")},
        "skills": skills,
        "agents": agents,
    }


def _list_entries(entries: Sequence[Entry]) -> dict[str, str]:
    return {entry.name: entry.description for entry in entries}


def _find_changed(told: Mapping[str, str], current: Mapping[str, str]) -> dict[str, str]:
    """Return new and changed descriptions by name, and an empty one for each name that is gone."""
    changed = {name: description for name, description in current.items() if told.get(name) != description}
    return {**changed, **{name: "" for name, description in told.items() if description and name not in current}}


def _describe_entries(kind: str, changed: Mapping[str, str]) -> list[str]:
    entries = [Entry(name, description) for name, description in changed.items() if description]
    gone = [name for name, description in changed.items() if not description]
    sections = [f"These {kind}s are new or have changed:\n{format_entries(entries, UNKNOWN_CHARS)}"] if entries else []
    return [*sections, f"These {kind}s are gone: {', '.join(gone)}"] if gone else sections


def _describe_restored(paths: Sequence[str]) -> str:
    shown = "".join(f"\n- {one_line(path, MAX_PATH_CHARS)}" for path in paths[:MAX_RESTORED])
    more = f"\n- and {len(paths) - MAX_RESTORED} more" if len(paths) > MAX_RESTORED else ""
    return f"{_RESTORED}{shown}{more}"


def _list_digests(files: Sequence[ContextFile]) -> dict[str, str]:
    return {path: file.digest for file in files for path in file.paths}


async def read_surroundings(
    directory: Path,
    env: Mapping[str, str],
    config: Config,
    today: date,
    *,
    scratch: Path,
    permissions: str = "",
    max_bytes: int = MAX_ALL_BYTES,
    skills: Sequence[Entry] = (),
    agents: Sequence[Entry] = (),
) -> Surroundings:
    """Return the surroundings of now, without the state of the repository. `max_bytes`: of all context files."""
    files, shell = await asyncio.gather(
        load_context_files(directory, config, env, max_bytes), asyncio.to_thread(find_shell, env, directory, scratch)
    )
    return Surroundings(
        directory=replace_surrogates(str(directory)),
        today=today,
        shell=Path(shell).name,
        platform=_platform(),
        permissions=permissions,
        files=files,
        skills=skills,
        agents=agents,
    )


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
