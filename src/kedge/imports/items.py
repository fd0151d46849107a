"""What can be taken over, and how files of other agents are read: bounded, and never changed."""

from __future__ import annotations

import json
import os
import re
import stat
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, cast

import msgspec

Agent = Literal["claude", "codex", "opencode", "crush", "gemini"]
AGENTS: tuple[Agent, ...] = ("claude", "codex", "opencode", "crush", "gemini")
Kind = Literal["mcp", "allow", "deny", "mode", "hook", "skill", "command", "agent", "instructions"]
Scope = Literal["user", "workspace"]
# "new" can be taken over; "used": Kedge reads it where it is; "known": it is there already; "conflict": something else
# has its name; "left_out": there is nothing like it here.
State = Literal["new", "used", "known", "conflict", "left_out"]

MAX_BYTES = 4 * 1024 * 1024  # of a settings file; `~/.claude.json` has whole histories
MAX_TEXT_BYTES = 256 * 1024  # of a file with text for a model
MAX_FILES = 200  # of one kind of one agent
MAX_SKILL_BYTES = 8 * 1024 * 1024


class Item(msgspec.Struct, frozen=True, kw_only=True):
    """`value` is what is written: the table of a server or hook, a rule, a text, or the source directory of a skill."""

    agent: Agent
    kind: Kind
    name: str
    path: str  # where it was found
    scope: Scope = "user"
    state: State = "new"
    note: str = ""
    value: Any = None

    @property
    def id(self) -> str:
        where = "" if self.scope == "user" else "project/"
        return f"{self.agent}/{where}{self.kind}/{self.name}"


class Problem(msgspec.Struct, frozen=True):
    path: str
    why: str


class Reader:
    """Reads files; what cannot be read is a problem, in one line each. `root`: no link may lead out of it."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []

    def read_json(self, path: Path, root: Path | None = None) -> dict[str, Any]:
        return self._parse(path, root, lambda text: json.loads(remove_comments(text)), "JSON")

    def read_toml(self, path: Path, root: Path | None = None) -> dict[str, Any]:
        return self._parse(path, root, tomllib.loads, "TOML")

    def read_text(self, path: Path, root: Path | None = None, most: int = MAX_TEXT_BYTES) -> str | None:
        """Return the text of a file; None if there is none or it cannot be read."""
        try:
            if root is not None and path.exists() and not path.resolve().is_relative_to(root.resolve()):
                return self._report(path, "is a link that leads out of the project; it was not followed")
            fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError, RuntimeError) as error:
            return self._report(path, f"cannot be read: {getattr(error, 'strerror', None) or error}")
        with os.fdopen(fd, "rb") as file:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode):
                return self._report(path, "is not a file")
            data = file.read(most + 1)
        if len(data) > most:
            return self._report(path, f"has more than {most >> 10} KiB; it was not read")
        try:
            return data.decode("utf-8-sig").replace("\r\n", "\n")
        except UnicodeDecodeError:
            return self._report(path, "is not UTF-8")

    def list_files(self, directory: Path, pattern: str) -> Iterator[Path]:
        """Yield the files below a directory, sorted; links to directories are not followed."""
        try:
            found = sorted(path for path in directory.rglob(pattern) if path.is_file())
        except OSError as error:
            self._report(directory, f"cannot be read: {error.strerror or error}")
            return
        if len(found) > MAX_FILES:
            self._report(directory, f"has more than {MAX_FILES} files; the others were not read")
        yield from found[:MAX_FILES]

    def _parse(self, path: Path, root: Path | None, parse: Callable[[str], Any], what: str) -> dict[str, Any]:
        text = self.read_text(path, root, MAX_BYTES)
        if text is None or not text.strip():
            return {}
        try:
            value = parse(text)
        except (ValueError, RecursionError) as error:
            self._report(path, f"is not valid {what}: {' '.join(str(error).split())[:100]}")
            return {}
        if not isinstance(value, dict):
            self._report(path, f"is not valid: expected {{…}}, not {type(value).__name__}")
            return {}
        return cast("dict[str, Any]", value)

    def _report(self, path: Path, why: str) -> None:
        self.problems.append(Problem(str(path), why))


_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*+"|//[^\n]*|/\*.*?\*/|,(?=\s*(?://[^\n]*\n\s*|/\*.*?\*/\s*)*[}\]])', re.DOTALL)


def remove_comments(text: str) -> str:
    """Return JSONC as JSON: without comments and commas before a closing bracket. Text in strings stays."""
    return _TOKEN.sub(lambda found: found[0] if found[0].startswith('"') else " ", text)


def table_of(value: Any, *names: str) -> dict[str, Any]:
    """Return the table at a path of names; empty if it is none."""
    for name in names:
        value = cast("dict[str, Any]", value).get(name) if isinstance(value, dict) else None
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def texts_of(value: Any) -> list[str]:
    return [each for each in cast("list[Any]", value) if isinstance(each, str)] if isinstance(value, list) else []
