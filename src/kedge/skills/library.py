"""The skills, commands and agents that a workspace has now: found, read and put in order of precedence.

Of skills and agents with the same name the first one wins: the project's, then the user's. Of commands the user's own
wins: a repository cannot replace it. Those of plugins have names of their own, `plugin:name`.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import msgspec

from kedge.config.schema import Config
from kedge.skills.definitions import (
    AgentDefinition,
    Command,
    Kind,
    Origin,
    Problem,
    Skill,
    name_command,
    parse_agent,
    parse_command,
    parse_skill,
)
from kedge.skills.places import Found, Place, find_files, list_places, list_untrusted, read_text, show

if TYPE_CHECKING:
    from kedge.skills.plugins import Plugin

MAX_CACHED = 5_000

Definition = Skill | Command | AgentDefinition
D = TypeVar("D", Skill, Command, AgentDefinition)


class Shadowed(msgspec.Struct, frozen=True):
    """A file that is not used because another one has its name."""

    kind: Kind
    name: str
    path: str
    by: str


class Library(msgspec.Struct, frozen=True):
    skills: Mapping[str, Skill] = {}
    commands: Mapping[str, Command] = {}
    agents: Mapping[str, AgentDefinition] = {}
    shadowed: Sequence[Shadowed] = ()
    problems: Sequence[Problem] = ()
    untrusted: Sequence[str] = ()  # directories that are not searched
    home: str = ""  # the user's directories: they differ for a caller with another environment

    @property
    def state(self) -> str:
        """Changes when a definition changes."""
        return hashlib.sha256(msgspec.json.encode([self.skills, self.commands, self.agents])).hexdigest()

    @property
    def has_slash_commands(self) -> bool:
        return bool(self.skills or self.commands)

    def find_slash_command(self, name: str) -> Skill | Command | None:
        """Return what `/name` runs: the user's own command or skill, else one of the project or of a plugin."""
        command, skill = self.commands.get(name), self.skills.get(name)
        skill = skill if skill is not None and skill.is_for_user else None
        if command is not None and command.origin.source == "user":
            return skill if skill is not None and skill.origin.source == "user" else command
        return skill or command

    def list_slash_commands(self) -> list[Skill | Command]:
        names = sorted({*self.commands, *self.skills})
        return [found for name in names if (found := self.find_slash_command(name)) is not None]


class _Cached(NamedTuple):
    state: tuple[int, int, int]
    definition: Definition | None
    problems: list[Problem]


class LibraryReader:
    """Reads libraries; files that have not changed are not read again."""

    def __init__(self) -> None:
        self._cache: dict[tuple[Kind, str, str], _Cached] = {}
        self._lock = threading.Lock()

    def read(self, directory: Path, env: Mapping[str, str], config: Config) -> Library:
        """Return what is there now. Blocks; never fails for what is in a file."""
        problems: list[Problem] = []
        shadowed: list[Shadowed] = []
        plugins: list[Plugin] = []
        if config.plugins:
            from kedge.skills.plugins import find_plugins  # few have some

            plugins = find_plugins(config, env, problems)
        with self._lock:
            skills = self._read_kind("skill", Skill, directory, env, config, plugins, problems)
            commands = self._read_kind("command", Command, directory, env, config, plugins, problems)
            agents = self._read_kind("agent", AgentDefinition, directory, env, config, plugins, problems)
        commands.sort(key=lambda each: each.origin.source == "workspace")  # the user's own first
        return Library(
            _index("skill", skills, shadowed),
            _index("command", commands, shadowed),
            _index("agent", agents, shadowed),
            shadowed,
            problems,
            [show(path) for path in list_untrusted(directory, env, config)],
            "\0".join(env.get(name, "") for name in ("HOME", "XDG_CONFIG_HOME")),
        )

    def _read_kind(
        self,
        kind: Kind,
        type: type[D],
        directory: Path,
        env: Mapping[str, str],
        config: Config,
        plugins: Sequence[Plugin],
        problems: list[Problem],
    ) -> list[D]:
        places = list_places(kind, directory, env, config)
        places += [place for plugin in plugins for place in plugin.list_places(kind)]
        seen: set[Path] = set()
        definitions: list[D] = []
        for place in places:
            for file in find_files(place, problems):
                if file.real in seen:  # one that several places link to
                    continue
                seen.add(file.real)
                definition = self._read_file(place, file, problems)
                if isinstance(definition, type):
                    definitions.append(definition)
        return definitions

    def _read_file(self, place: Place, file: Found, problems: list[Problem]) -> Definition | None:
        key = (place.kind, str(file.path), place.plugin)
        cached = self._cache.get(key)
        if cached is None or cached.state != file.state:
            cached = _Cached(file.state, *_parse(place, file))
            if len(self._cache) >= MAX_CACHED:
                self._cache.clear()
            self._cache[key] = cached
        problems += cached.problems
        return cached.definition


def _parse(place: Place, file: Found) -> tuple[Definition | None, list[Problem]]:
    problems: list[Problem] = []
    text = read_text(file.real)
    if text is None:
        return None, [Problem(show(file.path), "it cannot be read")]
    directory = file.path.parent.resolve() if place.kind == "skill" else place.path
    origin = Origin(place.source, show(file.path), show(directory), place.plugin, place.plugin_root)
    definition: Definition | None = None
    match place.kind:
        case "skill":
            definition = parse_skill(text, origin, file.path.parent.name, problems)
        case "command":
            name = name_command(file.relative)
            if name is None:
                problems.append(Problem(origin.path, "its name cannot be that of a command"))
            else:
                definition = parse_command(text, origin, name, problems)
        case "agent":
            definition = parse_agent(text, origin, file.relative.stem, problems)
    if definition is not None and place.plugin:
        definition = msgspec.structs.replace(definition, name=f"{place.plugin}:{definition.name}")
    return definition, problems


def _index(kind: Kind, definitions: Sequence[D], shadowed: list[Shadowed]) -> dict[str, D]:
    found: dict[str, D] = {}
    for definition in definitions:
        first = found.setdefault(definition.name, definition)
        if first is not definition:
            shadowed.append(Shadowed(kind, definition.name, definition.origin.path, first.origin.path))
    return dict(sorted(found.items()))
