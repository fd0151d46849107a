"""Change a configuration file: validate the change, then replace the file atomically."""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import tomllib
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, cast

import msgspec

from kedge.config.environment import referenced_names
from kedge.config.errors import BadConfig, CannotSet
from kedge.config.files import WORKSPACE_NAME, ConfigPaths, find_deep_key, parse_document, read_config_file
from kedge.config.keys import InvalidKey, format_key, parse_key
from kedge.config.mcp import find_server_problem
from kedge.config.schema import McpServerConfig
from kedge.config.schema_tree import Leaf, OpenTable, Table, explain_unknown, find_node, find_problems
from kedge.config.toml_edit import add_table, add_to_list, remove_key, set_key

Scope = Literal["global", "workspace"]

_ONLY_REFERENCE = re.compile(r"\$\{[A-Za-z_][A-Za-z0-9_]*(:-)?\}")
SECRET_NAME = re.compile(r"key|token|secret|passw|credential|auth|cookie", re.IGNORECASE)


def file_for_scope(scope: Scope, paths: ConfigPaths, directory: Path) -> Path:
    return paths.user if scope == "global" else directory / WORKSPACE_NAME


def set_in_file(file: Path, key: str, value: Any) -> None:
    """Set one key of a file, which is created if needed. Raises `CannotSet` or `BadConfig`."""
    path, leaf = _find_leaf(key)
    problem = next((why for _, why in find_problems(value, leaf)), None)
    if problem is not None and not _depends_on_variables(leaf, value):
        raise CannotSet(f"{format_key(path)}: {problem}")
    _reject_secret(path, value)
    _change(file, lambda text: set_key(text, path, value))


def remove_from_file(file: Path, key: str) -> bool:
    """Remove a key, or a table with its content; return whether it was there. Raises `CannotSet` or `BadConfig`."""
    path = _parse_path(key)
    if find_node(path) is None:
        raise CannotSet(f"{format_key(path)}: {explain_unknown(path)}")
    if not file.exists():
        return False
    before = file.read_bytes()
    _change(file, lambda text: remove_key(text, path))
    return file.read_bytes() != before


def add_rules(file: Path, kind: Literal["allow", "deny"], rules: Sequence[str]) -> None:
    """Add permission rules to `permissions.allow` or `deny` of a file; those it has already are left as they are.

    Raises `CannotSet` or `BadConfig`.
    """
    path, leaf = _find_leaf(f"permissions.{kind}")
    if (problem := leaf.find_problem(list(rules))) is not None:
        raise CannotSet(f"{format_key(path)}: {problem}")
    written = [_escape_references(rule) for rule in rules]

    def change(text: str) -> str:
        table: Any = tomllib.loads(text).get("permissions")
        listed = cast("dict[str, Any]", table).get(kind) if isinstance(table, dict) else None
        known = cast("list[Any]", listed) if isinstance(listed, list) else []
        missing = [rule for rule in dict.fromkeys(written) if rule not in known]
        return add_to_list(text, path, missing) if missing else text

    _change(file, change)


def add_server(file: Path, name: str, values: Mapping[str, Any], *, replaces: bool) -> None:
    """Write the table of an MCP server. Raises `CannotSet` or `BadConfig`; then the file is unchanged.

    Secrets may be written into the user's own file, which others cannot read if Kedge makes it.
    """
    path = ("mcp", name)
    for key, problem in find_problems(values, find_node(path), path):
        raise CannotSet(f"{format_key(key)}: {problem}")
    if (wrong := find_server_problem(name, msgspec.convert(values, McpServerConfig))) is not None:
        raise CannotSet(f"{format_key(('mcp', *wrong[0]))} {wrong[1]}")
    if file.name == WORKSPACE_NAME:
        for table in ("env", "headers"):
            for key, value in cast("dict[str, str]", values.get(table, {})).items():
                _reject_secret((*path, table, key), value)

    def change(text: str) -> str:
        known: Any = tomllib.loads(text).get("mcp")
        if isinstance(known, dict) and name in known:
            if not replaces:
                raise CannotSet(f"There is a server {name} in {file} already; remove it first, or use --force")
            text = remove_key(text, path)
        for key, value in values.items():
            text = set_key(text, (*path, key), value)
        return text

    _change(file, change)


def add_hook(file: Path, event: str, hook: Mapping[str, Any]) -> None:
    """Add a hook to those of an event. Raises `CannotSet` or `BadConfig`; then the file is unchanged."""
    path = ("hooks", event)
    for key, problem in find_problems([dict(hook)], find_node(path), path):
        raise CannotSet(f"{format_key(key)}: {problem}")
    _change(file, lambda text: add_table(text, path, hook))


def _escape_references(text: str) -> str:
    """Return the text as a configuration file must have it: there, `${NAME}` and `$$` would be replaced."""
    return text.replace("$", "$$") if re.search(r"\$[${]", text) else text


def parse_value(key: str, text: str) -> Any:
    """Convert a value from the command line: strings as they are, other types as TOML. Raises `CannotSet`."""
    path, leaf = _find_leaf(key)
    if leaf.kind in ("text", "choice"):
        return text
    try:
        is_value = "\n" not in text and find_deep_key(text) is None
        return tomllib.loads(f"x = {text}")["x"] if is_value else text
    except (ValueError, RecursionError):
        if leaf.kind == "texts":
            raise CannotSet(f'{format_key(path)}: expected a list of strings, like \'["one", "two"]\'') from None
        return text


def trust(file: Path, directory: Path) -> bool:
    """Add a directory to the trusted ones; return False if it was there already."""
    entries = _read_trusted(file)
    if str(directory) in entries:
        return False
    _change(file, lambda text: set_key(text, ("trusted",), [*entries, str(directory)]))
    return True


def untrust(file: Path, directory: Path, home: Path) -> bool:
    """Remove a directory from the trusted ones; return False if it was not listed itself."""
    from kedge.config.trust import resolve_trusted_entry

    entries = _read_trusted(file)
    kept = [each for each in entries if resolve_trusted_entry(each, home) != directory]
    if kept == entries:
        return False
    _change(file, lambda text: set_key(text, ("trusted",), kept))
    return True


def _read_trusted(file: Path) -> list[str]:
    entries: list[str] = (
        parse_document(file, read_config_file(file)[1]).values.get("trusted", []) if file.exists() else []
    )
    if list(find_problems({"trusted": entries})):
        raise CannotSet(f"{file}: trusted: expected a list of strings; fix it first")
    return entries


def _parse_path(key: str) -> tuple[str, ...]:
    try:
        return parse_key(key)
    except InvalidKey:
        raise CannotSet(f"{key[:100]!r} is not a key; write it like agent.max_steps") from None


def _find_leaf(key: str) -> tuple[tuple[str, ...], Leaf]:
    path = _parse_path(key)
    match find_node(path):
        case Leaf() as leaf:
            return path, leaf
        case Table(fields=fields):
            inside = ", ".join(fields)
            raise CannotSet(f"{format_key(path)} is a table; set one of its keys: {inside}")
        case OpenTable():
            raise CannotSet(f"{format_key(path)} is a table; set a key in it, like {format_key((*path, 'NAME'))}")
        case None:
            raise CannotSet(f"{format_key(path)}: {explain_unknown(path)}")


def _depends_on_variables(leaf: Leaf, value: Any) -> bool:
    """Whether the value depends on variables, so that it can be validated only when they are expanded."""
    if leaf.has_rules and isinstance(value, list):
        rules = [each for each in cast("list[Any]", value) if not (isinstance(each, str) and referenced_names(each))]
        return leaf.find_problem(rules) is None
    return leaf.kind == "choice" and isinstance(value, str) and bool(referenced_names(value))


def _reject_secret(path: tuple[str, ...], value: Any) -> None:
    is_named = ("headers" in path or "env" in path) and SECRET_NAME.search(path[-1])
    is_secret = path[-1] in ("api_key", "client_secret") or is_named
    if is_secret and not (isinstance(value, str) and is_reference(value)):
        other = f", or set {format_key((*path[:-1], 'api_key_command'))}" if path[-1] == "api_key" else ""
        raise CannotSet(f"Do not store secrets in a file: set {format_key(path)} to '${{NAME}}', a variable{other}")


def is_reference(text: str) -> bool:
    """Whether a text, perhaps a secret, is only `${NAME}`."""
    return _ONLY_REFERENCE.fullmatch(text.removeprefix("Bearer ")) is not None


def _change(file: Path, change: Callable[[str], str]) -> None:
    """Read, change and replace the file under a lock."""
    target = file.resolve()  # a link stays one
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with _lock(target.parent):
            content = read_config_file(target)[1] if target.exists() else b""
            document = parse_document(file, content)
            if document.problems:
                raise BadConfig(document.problems)
            text = content.decode()
            mark = "\ufeff" if text.startswith("\ufeff") else ""
            changed = _encode(mark + change(text.removeprefix(mark)))
            if changed != content:
                _replace(target, changed)
    except OSError as error:
        raise CannotSet(f"{file} cannot be written: {error.strerror or error}") from error


def _encode(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise CannotSet("the key or the value is not valid Unicode") from None


def _replace(target: Path, content: bytes) -> None:
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
    mode = target.stat().st_mode & 0o7777 if target.exists() else None
    is_shared = mode is None and target.name == WORKSPACE_NAME  # for a repository; other files are for their owner only
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666 if is_shared else 0o600)
    try:
        with os.fdopen(fd, "wb") as file:
            if mode is not None:
                os.fchmod(fd, mode)
            file.write(content)
            file.flush()
            os.fsync(fd)
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


@contextmanager
def _lock(directory: Path) -> Generator[None]:
    """Serialize changes of several processes; the kernel drops the lock if the process dies."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)
