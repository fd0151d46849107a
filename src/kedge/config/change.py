"""Changing a configuration file for somebody: checked before it is written, written whole or not at all."""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import tomllib
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, cast

from kedge.config.environment import names_in
from kedge.config.errors import BadConfig, CannotSet
from kedge.config.files import line_of_deep_key, parse, read_bytes
from kedge.config.keys import NotAKey, parsed, spelled
from kedge.config.paths import WORKSPACE_NAME, Places
from kedge.config.schema_tree import Leaf, Named, Table, find, problems, unknown
from kedge.config.toml_edit import remove_key, set_key

Scope = Literal["global", "workspace"]

_ONLY_REFERENCE = re.compile(r"\$\{[A-Za-z_][A-Za-z0-9_]*(:-)?\}")
SECRET_NAME = re.compile(r"key|token|secret|passw|credential|auth|cookie", re.IGNORECASE)


def file_of(scope: Scope, places: Places, directory: Path) -> Path:
    return places.user if scope == "global" else directory / WORKSPACE_NAME


def set_in(file: Path, key: str, value: Any) -> None:
    """Set one key of a file, which is made if it is not there."""
    path, leaf = _leaf(key)
    if (problem := leaf.problem(value)) is not None and not _is_reference(leaf, value):
        raise CannotSet(f"{spelled(path)}: {problem}")
    _keep_secrets_out(path, value)
    _change(file, lambda text: set_key(text, path, value))


def remove_in(file: Path, key: str) -> None:
    """Remove a key, or a table with all that is in it; one that is not there is not missed."""
    path = _path(key)
    if find(path) is None:
        raise CannotSet(f"{spelled(path)}: {unknown(path)}")
    if file.exists():
        _change(file, lambda text: remove_key(text, path))


def value_of(key: str, text: str) -> Any:
    """What a person typed for a key: a text as it is, anything else as TOML has it."""
    path, leaf = _leaf(key)
    if leaf.kind in ("text", "choice"):
        return text
    try:
        is_value = "\n" not in text and line_of_deep_key(text) is None
        return tomllib.loads(f"x = {text}")["x"] if is_value else text
    except (ValueError, RecursionError):
        if leaf.kind == "texts":
            raise CannotSet(f'{spelled(path)}: expected a list of texts, like \'["one", "two"]\'') from None
        return text


def trust(file: Path, directory: Path) -> bool:
    """Add a directory to those that the user trusts; False if it was there."""
    entries = _trusted(file)
    if str(directory) in entries:
        return False
    _change(file, lambda text: set_key(text, ("trusted",), [*entries, str(directory)]))
    return True


def untrust(file: Path, directory: Path, home: Path) -> bool:
    """Take a directory out of them; False if it was not there by itself."""
    from kedge.config.trust import trusted_path

    entries = _trusted(file)
    kept = [each for each in entries if trusted_path(each, home) != directory]
    if kept == entries:
        return False
    _change(file, lambda text: set_key(text, ("trusted",), kept))
    return True


def _trusted(file: Path) -> list[str]:
    entries: list[str] = parse(file, read_bytes(file)[1]).values.get("trusted", []) if file.exists() else []
    if list(problems({"trusted": entries})):
        raise CannotSet(f"{file}: trusted: expected a list of texts; mend it first")
    return entries


def _path(key: str) -> tuple[str, ...]:
    try:
        return parsed(key)
    except NotAKey:
        raise CannotSet(f"{key[:100]!r} is no key; write it like agent.max_steps") from None


def _leaf(key: str) -> tuple[tuple[str, ...], Leaf]:
    path = _path(key)
    match find(path):
        case Leaf() as leaf:
            return path, leaf
        case Table(fields=fields):
            inside = ", ".join(fields)
            raise CannotSet(f"{spelled(path)} is a table; set one of its keys: {inside}")
        case Named():
            raise CannotSet(f"{spelled(path)} is a table; set a key in it, like {spelled((*path, 'NAME'))}")
        case None:
            raise CannotSet(f"{spelled(path)}: {unknown(path)}")


def _is_reference(leaf: Leaf, value: Any) -> bool:
    """Whether only what its variables hold can tell if it is right."""
    if leaf.has_rules and isinstance(value, list):
        rules = [each for each in cast("list[Any]", value) if not (isinstance(each, str) and names_in(each))]
        return leaf.problem(rules) is None
    return leaf.kind == "choice" and isinstance(value, str) and bool(names_in(value))


def _keep_secrets_out(path: tuple[str, ...], value: Any) -> None:
    is_secret = path[-1] == "api_key" or ("headers" in path and SECRET_NAME.search(path[-1]))
    if is_secret and not (isinstance(value, str) and _ONLY_REFERENCE.fullmatch(value.removeprefix("Bearer "))):
        other = f", or set {spelled((*path[:-1], 'api_key_command'))}" if path[-1] == "api_key" else ""
        raise CannotSet(f"a key does not belong in a file: set {spelled(path)} to '${{NAME}}', a variable{other}")


def _change(file: Path, change: Callable[[str], str]) -> None:
    """Read, change, check and replace, with nobody in between."""
    target = file.resolve()  # a link stays one
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with _only_one(target.parent):
            content = read_bytes(target)[1] if target.exists() else b""
            document = parse(file, content)
            if document.problems:
                raise BadConfig(document.problems)
            text = content.decode()
            mark = "\ufeff" if text.startswith("\ufeff") else ""
            changed = _encoded(mark + change(text.removeprefix(mark)))
            if changed != content:
                _replace(target, changed)
    except OSError as error:
        raise CannotSet(f"{file} cannot be written: {error.strerror or error}") from error


def _encoded(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise CannotSet("the key or the value is not valid Unicode") from None


def _replace(target: Path, content: bytes) -> None:
    beside = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
    mode = target.stat().st_mode & 0o7777 if target.exists() else None
    is_shared = mode is None and target.name == WORKSPACE_NAME  # made for a repository; all others are for their owner
    fd = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666 if is_shared else 0o600)
    try:
        with os.fdopen(fd, "wb") as file:
            if mode is not None:
                os.fchmod(fd, mode)
            file.write(content)
            file.flush()
            os.fsync(fd)
        beside.replace(target)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


@contextmanager
def _only_one(directory: Path) -> Generator[None]:
    """Two that change a file at the same time do it one after the other; the lock goes with the process."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)
