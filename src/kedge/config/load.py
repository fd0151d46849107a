"""Merge the layers of the configuration into one `Config`, with the origin of each value and the ignored keys.

Later layers win: defaults, system, user, workspace files from the outermost to the innermost, variables. Tables are
merged, values and lists replaced; a `command` or `url` of an MCP server replaces its whole table. Only
`permissions.deny`, `sandbox.hidden` and hooks accumulate, so that no layer can undo what another forbids.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, cast

import msgspec

from kedge.config import mcp
from kedge.config.environment import expand_references, has_references, read_variables
from kedge.config.errors import BadConfig, Problem
from kedge.config.files import ConfigPaths, Document, FileCache, Layer, parse_document, workspace_files
from kedge.config.keys import Key, format_key
from kedge.config.mcp import JSON_NAME, parse_mcp_json
from kedge.config.schema import Config
from kedge.config.schema_tree import find_problems
from kedge.config.trust import NOT_TRUSTED, REFERS, Ignored, is_trusted, why_ignored

# msgspec inspects a struct at its first use. Two threads doing that at once crash the process; done here, only the
# importing thread does it.
msgspec.json.Decoder(Config)

MAX_PROBLEMS = 100  # of one file; finding a similar key for each takes time
ACCUMULATED = (("permissions", "deny"), ("sandbox", "hidden"))
_NOT_EXPANDED = ("mcp", "hooks")
OriginOf = Callable[[Key], "Origin"]
WhyNot = Callable[[Key, Any], str | None]  # why a key with this value is ignored


class Origin(msgspec.Struct, frozen=True):
    """Where a value comes from: a line of a file, a variable, or the defaults."""

    layer: Layer
    name: str = ""  # file or variable
    line: int = 0
    refers: bool = False  # the file has `${…}` there

    def __str__(self) -> str:
        return f"{self.name}:{self.line}" if self.line else self.name or self.layer


class ConfigFile(msgspec.Struct, frozen=True):
    path: str
    layer: Layer
    exists: bool
    trusted: bool


class Loaded(msgspec.Struct, frozen=True):
    config: Config
    origins: dict[Key, Origin]  # of values that are not defaults; for accumulated lists, the last layer that added
    ignored: tuple[Ignored, ...] = ()
    files: tuple[ConfigFile, ...] = ()


class Loader:
    """Loads on each call; unchanged files are not read again."""

    def __init__(self, paths: ConfigPaths | None = None) -> None:
        self.paths = paths or ConfigPaths.from_env()
        self._files = FileCache()

    def load(self, directory: Path, env: Mapping[str, str]) -> Loaded:
        """Return the configuration of a directory for a caller with these variables. Raises `BadConfig`."""
        merge = _Merge(env, home=Path(env.get("HOME") or Path.home()))
        for path in self.paths.system:
            merge.add_trusted_file("system", path, self._files.read(path))
        merge.add_trusted_file("user", self.paths.user, self._files.read(self.paths.user))
        merge.finish_user_layers()
        for path in workspace_files(directory):
            mcp_json = path.with_name(JSON_NAME)
            merge.add_mcp_json(mcp_json, self._files.read(mcp_json, parse_mcp_json))
            if path != self.paths.user:
                merge.add_workspace_file(path, self._files.read(path))
        merge.add_variables()
        return merge.result()

    def state(self, directory: Path) -> tuple[tuple[str, bytes], ...]:
        """Return digests of a directory's files, to notice changes; empty files, perhaps half written, are left out."""
        found = [document for path in self.candidates(directory) if (document := self._read(path)) is not None]
        return tuple((str(each.path), each.digest) for each in found if each.values or each.problems)

    def candidates(self, directory: Path) -> list[Path]:
        of_workspace = [each for path in workspace_files(directory) for each in (path.with_name(JSON_NAME), path)]
        return [*self.paths.system, self.paths.user, *of_workspace]

    def _read(self, path: Path) -> Document | None:
        return self._files.read(path, parse_mcp_json if path.name == JSON_NAME else parse_document)


class _Merge:
    def __init__(self, env: Mapping[str, str], home: Path) -> None:
        self._env = env
        self._home = home
        self._values: dict[str, Any] = {}
        self._origins: dict[Key, Origin] = {}
        self._ignored: list[Ignored] = []
        self._files: list[ConfigFile] = []
        self._problems: list[Problem] = []
        self._users = Config()  # set by system and user files
        self._is_sandboxed = False  # commands run in the sandbox

    def add_trusted_file(self, layer: Layer, path: Path, document: Document | None) -> None:
        self._files.append(ConfigFile(str(path), layer, document is not None, trusted=True))
        if document is not None:
            self._add(layer, document, self._check(document, document.values))

    def finish_user_layers(self) -> None:
        if not self._problems:
            self._users = msgspec.convert(self._values, Config)
        modes = [value for path, value in read_variables(self._env)[0].values() if path == ("sandbox", "mode")]
        self._is_sandboxed = {self._users.sandbox.mode, *modes} != {"off"}

    def add_workspace_file(self, path: Path, document: Document | None) -> None:
        trusted = self._is_trusted(path)
        self._files.append(ConfigFile(str(path), "workspace", document is not None, trusted))
        if document is None:
            return
        values = document.values
        if not trusted:
            values = self._select(document, values, _why_reference_ignored)
        values = self._check(document, values)
        permitted = self._select(document, values, partial(why_ignored, users=self._users, is_trusted=trusted))
        self._add("workspace", document, permitted)

    def add_mcp_json(self, path: Path, document: Document | None) -> None:
        """Add the servers of a `.mcp.json`. What is wrong with it is reported, and no problem of the configuration."""
        if document is None:
            return
        trusted = self._is_trusted(path)
        self._files.append(ConfigFile(str(path), "workspace", exists=True, trusted=trusted))
        if not trusted:
            self._ignore(document, ("mcp",), NOT_TRUSTED)
            return
        self._ignored += [Ignored(each.where, each.line, each.key or "mcp", each.message) for each in document.problems]
        self._add("workspace", document, document.values)

    def _is_trusted(self, path: Path) -> bool:
        # A sandboxed command can write this file: it must not be able to loosen its own sandbox.
        return not self._is_sandboxed and is_trusted(path.parent, self._users.trusted, self._home)

    def add_variables(self) -> None:
        found, wrong = read_variables(self._env)
        self._problems += wrong
        for name, (path, value) in found.items():
            origin = Origin("environment", name)
            self._merge(_nest(path, value), self._values, (), lambda _, origin=origin: origin)

    def result(self) -> Loaded:
        if self._problems:
            raise BadConfig(self._problems)
        config = msgspec.convert(self._values, Config)
        checked = [("mcp", mcp.find_server_problem(name, server)) for name, server in config.mcp.items()]
        if config.lsp:
            from kedge.config import lsp

            checked += [("lsp", lsp.find_server_problem(name, server)) for name, server in config.lsp.items()]
        for table, problem in checked:
            if problem is not None:
                key: Key = (table, *problem[0])
                origin = next((each for path, each in self._origins.items() if path[: len(key)] == key), Origin("user"))
                self._problems.append(Problem(origin.name or table, origin.line, format_key(key), problem[1]))
        if self._problems:
            raise BadConfig(self._problems)
        return Loaded(config, self._origins, tuple(self._ignored), tuple(self._files))

    def _check(self, document: Document, values: dict[str, Any]) -> dict[str, Any]:
        """Expand references and validate; return nothing if there are problems, which are recorded."""
        wrong: list[tuple[Key, str]] = []
        # Servers are expanded when they are started; commands of hooks, by the shell.
        servers = {name: each for name, each in values.items() if name in _NOT_EXPANDED}
        values = {name: each for name, each in values.items() if name not in _NOT_EXPANDED}
        values = expand_references(values, self._env, (), lambda key, why: wrong.append((key, why))) | servers
        unset = {key for key, _ in wrong}
        wrong += islice(((key, why) for key, why in find_problems(values) if key not in unset), MAX_PROBLEMS)
        file, line_of = str(document.path), document.layout.line_of
        found = [Problem(file, line_of(key), format_key(key), why) for key, why in wrong[:MAX_PROBLEMS]]
        self._problems += [*document.problems, *sorted(found, key=lambda each: each.line)]
        return {} if found else values

    def _select(self, document: Document, values: dict[str, Any], why_not: WhyNot, path: Key = ()) -> dict[str, Any]:
        """Return the values that apply; record the ignored ones with the reason."""
        kept: dict[str, Any] = {}
        for name, value in values.items():
            key = (*path, name)
            if isinstance(value, dict) and value:
                if inner := self._select(document, cast("dict[str, Any]", value), why_not, key):
                    kept[name] = inner
            elif (why := why_not(key, value)) is not None:
                self._ignore(document, key, why)
            else:
                kept[name] = value
        return kept

    def _ignore(self, document: Document, key: Key, why: str) -> None:
        hint = f"; see: kedge config trust {shlex.quote(str(document.path.parent))}" if NOT_TRUSTED in why else ""
        if hint and self._is_sandboxed:
            hint = ", and no directory is trusted while the sandbox is on"
        line = document.layout.line_of(key)
        self._ignored.append(Ignored(str(document.path), line, format_key(key), why + hint))

    def _add(self, layer: Layer, document: Document, values: dict[str, Any]) -> None:
        def origin_of(key: Key) -> Origin:
            refers = has_references(_at(document.values, key))
            return Origin(layer, str(document.path), document.layout.line_of(key), refers)

        self._merge(values, self._values, (), origin_of)

    def _merge(self, values: dict[str, Any], into: dict[str, Any], path: Key, origin_of: OriginOf) -> None:
        for name, value in values.items():
            key = (*path, name)
            if isinstance(value, dict):
                inner = into.get(name)
                # A server with another command or address is another server: it gets no secrets of the earlier one.
                is_other_server = len(key) == 2 and key[0] == "mcp" and not value.keys().isdisjoint(("command", "url"))
                if is_other_server or not isinstance(inner, dict):
                    self._forget(key)
                    inner = into[name] = {}
                self._merge(cast("dict[str, Any]", value), cast("dict[str, Any]", inner), key, origin_of)
                continue
            if key in ACCUMULATED or (key[0] == "hooks" and len(key) == 2):
                known: list[Any] = into.get(name, [])
                value = [*known, *(each for each in _without_repeats(value) if each not in known)]
            self._forget(key)
            into[name] = value
            self._origins[key] = origin_of(key)

    def _forget(self, key: Key) -> None:
        """Drop the origins at and below a key that is replaced."""
        for known in [known for known in self._origins if known[: len(key)] == key]:
            del self._origins[known]


def _why_reference_ignored(_: Key, value: Any) -> str | None:
    return REFERS if has_references(value) else None


def _without_repeats(values: list[Any]) -> list[Any]:
    return [each for index, each in enumerate(values) if each not in values[:index]]


def _nest(path: tuple[str, ...], value: Any) -> dict[str, Any]:
    for name in reversed(path):
        value = {name: value}
    return value


def _at(values: Any, key: Key) -> Any:
    for name in key:
        values = values[name]
    return values
