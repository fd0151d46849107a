"""Compares what was found with what Kedge has, and takes over what the user picked. Nothing is ever overwritten."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import msgspec

from kedge.config.change import add_hook, add_rules, add_server, file_for_scope, set_in_file
from kedge.config.errors import BadConfig, CannotSet
from kedge.config.files import ConfigPaths, parse_document, read_config_file
from kedge.imports.items import MAX_FILES, MAX_SKILL_BYTES, Item, Scope

_DIRECTORIES = {"command": "commands", "agent": "agents", "skill": "skills"}


class Outcome(NamedTuple):
    item: Item
    target: str  # the file or directory
    error: str = ""


class Target:
    """The files of Kedge that are written: the user's, or the project's."""

    def __init__(self, paths: ConfigPaths, project: Path) -> None:
        self._paths = paths
        self._project = project

    def file_of(self, item: Item) -> Path:
        """Return what an item is written to."""
        own = self._paths.user.parent if item.scope == "user" else self._project / ".kedge"
        match item.kind:
            case "instructions":
                return own / "AGENTS.md"
            case "command" | "agent":
                return own / _DIRECTORIES[item.kind] / f"{item.name}.md"
            case "skill":
                return own / "skills" / item.name
            case _:
                return self.config_of(item.scope)

    def config_of(self, scope: Scope) -> Path:
        return file_for_scope("global" if scope == "user" else "workspace", self._paths, self._project)

    def read_config(self, scope: Scope) -> dict[str, Any]:
        """Return the values of a file as they are written. Raises `BadConfig`."""
        path = self.config_of(scope)
        try:
            document = parse_document(path, read_config_file(path)[1])
        except OSError:
            return {}
        if document.problems:
            raise BadConfig(document.problems)
        return document.values


def compare_items(items: Iterable[Item], target: Target) -> list[Item]:
    """Return the items with their states: what is there already, and what something else has the name of."""
    scopes: tuple[Scope, ...] = ("user", "workspace")
    configs = {scope: target.read_config(scope) for scope in scopes}
    taken: dict[tuple[str, str, str], Item] = {}
    compared: list[Item] = []
    for item in items:
        if item.state == "new":
            item = _compare(item, target, configs[item.scope])
        if item.state == "new" and item.kind not in ("instructions", "hook"):
            key = (item.scope, item.kind, item.name)
            first = taken.setdefault(key, item)
            if first is not item and item.kind in ("allow", "deny", "mode"):
                item = msgspec.structs.replace(item, state="known", note=f"the same as {first.id}")
            elif first is not item:
                is_same = first.value == item.value
                note = f"the same as {first.id}" if is_same else f"{first.id} has this name"
                item = msgspec.structs.replace(item, state="known" if is_same else "conflict", note=note)
        compared.append(item)
    return compared


def _compare(item: Item, target: Target, config: Mapping[str, Any]) -> Item:
    known: Any
    match item.kind:
        case "mcp":
            known = config.get("mcp", {}).get(item.name)
            return _with_state(item, known is not None, known == item.value, f"[mcp.{item.name}]")
        case "allow" | "deny":
            listed = config.get("permissions", {}).get(item.kind, [])
            is_there = item.value in listed or str(item.value).replace("$", "$$") in listed
            return _with_state(item, is_there, is_there, "")
        case "mode":
            known = config.get("permissions", {}).get("mode")
            return _with_state(item, known is not None, known == item.value, "permissions.mode")
        case "hook":
            event, hook = cast("tuple[str, dict[str, Any]]", item.value)
            is_there = hook in config.get("hooks", {}).get(event, [])
            return _with_state(item, is_there, is_there, "")
        case "skill":
            path = target.file_of(item)
            is_same = path.is_dir() and _digest_files(path) == _digest_files(Path(item.value))
            return _with_state(item, os.path.lexists(path), is_same, str(path))
        case "command" | "agent" | "instructions":
            path = target.file_of(item)
            text = _read(path)
            if item.kind == "instructions":  # added to the file
                is_there = text is not None and item.value in text
                return _with_state(item, is_there, is_there, "")
            return _with_state(item, os.path.lexists(path), text == item.value, str(path))


def _with_state(item: Item, is_there: bool, is_same: bool, what: str) -> Item:
    if not is_there:
        return item
    if is_same:
        return msgspec.structs.replace(item, state="known")
    return msgspec.structs.replace(item, state="conflict", note=f"{what} is there with another content")


def take_over(items: Sequence[Item], target: Target) -> list[Outcome]:
    """Write the items. What cannot be written is an outcome with an error; the others are written."""
    outcomes: list[Outcome] = []
    for item in items:
        path = target.file_of(item)
        try:
            _write(item, path)
        except BadConfig as error:
            outcomes.append(Outcome(item, str(path), str(error.problems[0])))
        except CannotSet as error:
            outcomes.append(Outcome(item, str(path), str(error)))
        except OSError as error:
            outcomes.append(Outcome(item, str(path), error.strerror or str(error)))
        else:
            outcomes.append(Outcome(item, str(path)))
    return outcomes


def _write(item: Item, path: Path) -> None:
    match item.kind:
        case "mcp":
            add_server(path, item.name, item.value, replaces=False)
        case "allow" | "deny":
            add_rules(path, item.kind, [item.value])
        case "mode":
            set_in_file(path, "permissions.mode", item.value)
        case "hook":
            add_hook(path, *item.value)
        case "skill":
            _copy_skill(Path(item.value), path)
        case "instructions":
            known = _read(path)
            start = f"{known.rstrip()}\n\n" if known and known.strip() else ""
            _write_text(path, f"{start}<!-- from {item.path} -->\n\n{item.value}\n", is_new=known is None)
        case "command" | "agent":
            _write_text(path, item.value, is_new=True)


def _write_text(path: Path, text: str, *, is_new: bool) -> None:
    """Write the whole file or nothing. Raises `FileExistsError` if a new one is there already."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.importing")
    temporary.write_text(text, encoding="utf-8")
    if is_new:
        try:
            os.link(temporary, path)
        finally:
            temporary.unlink()
        return
    temporary.chmod(stat.S_IMODE(path.stat().st_mode))
    temporary.replace(path.resolve())


def _copy_skill(source: Path, path: Path) -> None:
    """Copy the regular files of a skill. Raises `CannotSet` if it is too large or has links."""
    files = _list_skill(source)
    temporary = path.with_name(f".{path.name}.importing")
    shutil.rmtree(temporary, ignore_errors=True)
    for file in files:
        place = temporary / file.relative_to(source)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, place)
    temporary.rename(path)


def _list_skill(source: Path) -> list[Path]:
    files: list[Path] = []
    size = 0
    for file in sorted(source.rglob("*")):
        status = file.lstat()
        if stat.S_ISDIR(status.st_mode):
            continue
        if not stat.S_ISREG(status.st_mode):
            raise CannotSet(f"{file} is a link or no file; copy the skill by hand")
        files.append(file)
        size += status.st_size
        if len(files) > MAX_FILES or size > MAX_SKILL_BYTES:
            raise CannotSet(f"{source} has more than {MAX_FILES} files or {MAX_SKILL_BYTES >> 20} MiB")
    return files


def _digest_files(root: Path) -> dict[str, bytes] | None:
    try:
        return {str(file.relative_to(root)): file.read_bytes() for file in _list_skill(root)}
    except (OSError, CannotSet):
        return None


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None
