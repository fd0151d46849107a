"""`load`: the layers become one `Config`, and it is known where each value came from and what was left out.

Later wins: defaults, system, user, the workspace's files from the outermost to the innermost, variables. Tables are
merged, values and lists replaced; only `permissions.deny` and `sandbox.hidden` grow, so that no layer can undo what
another forbids.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, cast

import msgspec

from kedge.config import environment
from kedge.config.environment import expanded, has_references
from kedge.config.errors import BadConfig, Problem
from kedge.config.files import Document, Files
from kedge.config.keys import Key, spelled
from kedge.config.paths import Layer, Places, workspace_files
from kedge.config.schema import Config
from kedge.config.schema_tree import problems
from kedge.config.trust import NOT_TRUSTED, REFERS, Ignored, is_trusted, refusal

# msgspec learns what a struct is made of at its first use, and a thread that comes while another is at it reads what is
# not there yet, and takes the process with it. Here one thread is at it: the one that imports this.
msgspec.json.Decoder(Config)

MAX_PROBLEMS = 100  # of one file; each is compared with every known key, to say what was meant
GROWING = (("permissions", "deny"), ("sandbox", "hidden"))
OriginOf = Callable[[Key], "Origin"]
WhyNot = Callable[[Key, Any], str | None]  # why a key with this value does not count


class Origin(msgspec.Struct, frozen=True):
    """Where a value comes from: a line of a file, a variable, or neither."""

    layer: Layer
    name: str = ""  # of the file or the variable
    line: int = 0
    refers: bool = False  # the file says `${…}` there

    def __str__(self) -> str:
        return f"{self.name}:{self.line}" if self.line else self.name or self.layer


class ConfigFile(msgspec.Struct, frozen=True):
    path: str
    layer: Layer
    exists: bool
    trusted: bool


class Loaded(msgspec.Struct, frozen=True):
    config: Config
    origins: dict[Key, Origin]  # of what is not a default; of a list that grows, the last layer that added to it
    ignored: tuple[Ignored, ...] = ()
    files: tuple[ConfigFile, ...] = ()


class Loader:
    """Loads again and again: files are looked at each time, and read only when they changed."""

    def __init__(self, places: Places | None = None) -> None:
        self.places = places or Places.of()
        self._files = Files()

    def load(self, directory: Path, env: Mapping[str, str]) -> Loaded:
        """What holds in a directory for a caller with these variables; `BadConfig` has all that is wrong with it."""
        merging = _Merging(env, home=Path(env.get("HOME") or Path.home()))
        for path in self.places.system:
            merging.add_own("system", path, self._files.read(path))
        merging.add_own("user", self.places.user, self._files.read(self.places.user))
        merging.settle_users()
        for path in workspace_files(directory):
            if path != self.places.user:
                merging.add_foreign(path, self._files.read(path))
        merging.add_variables()
        return merging.result()

    def state(self, directory: Path) -> tuple[tuple[str, bytes], ...]:
        """What the files of a directory say, to be compared with what they said before. One that says nothing, perhaps
        because somebody is only about to write it, is like none."""
        found = [document for path in self.candidates(directory) if (document := self._files.read(path)) is not None]
        return tuple((str(each.path), each.digest) for each in found if each.values or each.problems)

    def candidates(self, directory: Path) -> list[Path]:
        return [*self.places.system, self.places.user, *workspace_files(directory)]


class _Merging:
    def __init__(self, env: Mapping[str, str], home: Path) -> None:
        self._env = env
        self._home = home
        self._values: dict[str, Any] = {}
        self._origins: dict[Key, Origin] = {}
        self._ignored: list[Ignored] = []
        self._files: list[ConfigFile] = []
        self._problems: list[Problem] = []
        self._users = Config()  # what the user has set, before any workspace had its say
        self._is_confined = False  # commands are held

    def add_own(self, layer: Layer, path: Path, document: Document | None) -> None:
        self._files.append(ConfigFile(str(path), layer, document is not None, trusted=True))
        if document is not None:
            self._add(layer, document, self._checked(document, document.values))

    def settle_users(self) -> None:
        if not self._problems:
            self._users = msgspec.convert(self._values, Config)
        modes = [value for path, value in environment.read(self._env)[0].values() if path == ("sandbox", "mode")]
        self._is_confined = {self._users.sandbox.mode, *modes} != {"off"}

    def add_foreign(self, path: Path, document: Document | None) -> None:
        # What a held command can write must not open the door for it.
        trusted = not self._is_confined and is_trusted(path.parent, self._users.trusted, self._home)
        self._files.append(ConfigFile(str(path), "workspace", document is not None, trusted))
        if document is None:
            return
        values = document.values
        if not trusted:
            values = self._kept(document, values, _reference)
        values = self._checked(document, values)
        permitted = self._kept(document, values, partial(refusal, users=self._users, is_trusted=trusted))
        self._add("workspace", document, permitted)

    def add_variables(self) -> None:
        found, wrong = environment.read(self._env)
        self._problems += wrong
        for name, (path, value) in found.items():
            origin = Origin("environment", name)
            self._merge(_nested(path, value), self._values, (), partial(_always, origin))

    def result(self) -> Loaded:
        if self._problems:
            raise BadConfig(self._problems)
        config = msgspec.convert(self._values, Config)
        return Loaded(config, self._origins, tuple(self._ignored), tuple(self._files))

    def _checked(self, document: Document, values: dict[str, Any]) -> dict[str, Any]:
        """The values expanded, or nothing if anything is wrong with them."""
        wrong: list[tuple[Key, str]] = []
        values = expanded(values, self._env, (), lambda key, why: wrong.append((key, why)))
        unset = {key for key, _ in wrong}
        wrong += islice(((key, why) for key, why in problems(values) if key not in unset), MAX_PROBLEMS)
        found = [_problem(document, key, why) for key, why in wrong[:MAX_PROBLEMS]]
        self._problems += [*document.problems, *sorted(found, key=lambda each: each.line)]
        return {} if found else values

    def _kept(self, document: Document, values: dict[str, Any], why_not: WhyNot, path: Key = ()) -> dict[str, Any]:
        """The values that count; of each other it is noted why it does not."""
        kept: dict[str, Any] = {}
        for name, value in values.items():
            key = (*path, name)
            if isinstance(value, dict) and value:
                if inner := self._kept(document, cast("dict[str, Any]", value), why_not, key):
                    kept[name] = inner
            elif (why := why_not(key, value)) is not None:
                self._ignore(document, key, why)
            else:
                kept[name] = value
        return kept

    def _ignore(self, document: Document, key: Key, why: str) -> None:
        hint = f"; see: kedge config trust {shlex.quote(str(document.path.parent))}" if NOT_TRUSTED in why else ""
        if hint and self._is_confined:
            hint = ", and none is while you have the sandbox on"
        line = document.layout.line_of(key)
        self._ignored.append(Ignored(str(document.path), line, spelled(key), why + hint))

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
                if not isinstance(inner, dict):
                    self._forget(key)
                    inner = into[name] = {}
                self._merge(cast("dict[str, Any]", value), cast("dict[str, Any]", inner), key, origin_of)
                continue
            if key in GROWING:
                value = list(dict.fromkeys([*into.get(name, []), *value]))
            self._forget(key)
            into[name] = value
            self._origins[key] = origin_of(key)

    def _forget(self, key: Key) -> None:
        """A value takes the place of a table, or a table that of a value: nothing below it came from anywhere."""
        for known in [known for known in self._origins if known[: len(key)] == key]:
            del self._origins[known]


def _problem(document: Document, key: Key, why: str) -> Problem:
    return Problem(str(document.path), document.layout.line_of(key), spelled(key), why)


def _reference(_: Key, value: Any) -> str | None:
    return REFERS if has_references(value) else None


def _always(origin: Origin, _: Key) -> Origin:
    return origin


def _nested(path: tuple[str, ...], value: Any) -> dict[str, Any]:
    for name in reversed(path):
        value = {name: value}
    return value


def _at(values: Any, key: Key) -> Any:
    for name in key:
        values = values[name]
    return values
