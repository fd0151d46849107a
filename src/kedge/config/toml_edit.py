"""Set or remove one key of a TOML text, leaving every other line, comments included, unchanged.

Each result is parsed and compared with the expected values before it is returned; a change that fails this raises
`CannotSet`. `docs/adr/0026-toml-editing-and-inotify.md` says why this is not tomlkit.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any, cast

from kedge.config.errors import CannotSet
from kedge.config.keys import format_key, quote
from kedge.config.toml_layout import Entry, TomlLayout

Names = tuple[str, ...]

_FIRST_INDENT = re.compile(r"[ \t]*\r?\n([ \t]*)")  # of a list whose first element is on a line of its own


def set_key(text: str, path: Names, value: Any) -> str:
    """Set `path` to `value`: at its current position, beside its siblings, or in a new table. Raises `CannotSet`."""
    layout, expected = TomlLayout(text), tomllib.loads(text)
    _put(expected, path, value)
    entry = next((each for each in layout.entries if each.path == path), None)
    if entry is not None:
        return _verify(text[: entry.value_start] + format_value(value) + text[entry.value_end :], expected, path)
    return _verify(_insert(layout, path, value), expected, path)


def add_to_list(text: str, path: Names, added: Sequence[str]) -> str:
    """Add strings to a list, which is created if needed; comments inside it are kept. Raises `CannotSet`.

    They go to the end; in a list of several lines to its start, because a comment may belong to the last element.
    """
    entry = next((each for each in TomlLayout(text).entries if each.path == path), None)
    if entry is None:
        return set_key(text, path, added)
    expected = tomllib.loads(text)
    found = _get_list(expected, path)
    head, inside, tail = _split(text, entry.value_start + 1, entry.value_end - 1)
    if "\n" in inside:
        _put(expected, path, [*added, *found])
        indent = _FIRST_INDENT.match(inside)
        start = _newline(text) + (indent[1] if indent else "    ")
        lines = "".join(f"{start}{format_value(each)}," for each in added)
        return _verify(head + lines + inside + tail, expected, path)
    _put(expected, path, [*found, *added])
    kept = inside.strip().removesuffix(",").rstrip()
    return _verify(head + ", ".join(filter(None, [kept, *map(format_value, added)])) + tail, expected, path)


def add_table(text: str, path: Names, values: Mapping[str, Any]) -> str:
    """Add a table to an array of tables (`[[path]]`), at the end of the text. Raises `CannotSet`."""
    expected = tomllib.loads(text)
    inner = expected
    for name in path[:-1]:
        inner = inner.setdefault(name, {})
        if not isinstance(inner, dict):
            raise CannotSet(f"{format_key(path[:-1])} is not a table in this file; edit the file by hand")
        inner = cast("dict[str, Any]", inner)
    found = inner.setdefault(path[-1], [])
    if not isinstance(found, list):
        raise CannotSet(f"{format_key(path)} is not a list in this file; edit the file by hand")
    listed = cast("list[Any]", found)
    listed.append(dict(values))
    if any(entry.path == path for entry in TomlLayout(text).entries):  # written as `path = [ … ]`
        return set_key(text, path, listed)
    line_end = _newline(text)
    lines = [
        f"[[{format_key(path)}]]",
        *(f"{format_key((name,))} = {format_value(each)}" for name, each in values.items()),
    ]
    start = text if not text or text.endswith("\n") else text + line_end
    gap = line_end if start.strip() else ""
    return _verify(f"{start}{gap}{line_end.join(lines)}{line_end}", expected, path)


def remove_key(text: str, path: Names) -> str:
    """Remove a value with its line, or a table with its content; a missing key changes nothing. Raises `CannotSet`."""
    layout, expected = TomlLayout(text), tomllib.loads(text)
    if not _delete(expected, path):
        return text
    cuts = [_span(layout, each) for each in layout.entries if each.path[: len(path)] == path]
    headers = [each for each in layout.headers if each.path[: len(path)] == path]
    cuts += [(_line_start(text, each.start), _line_end(text, each.end)) for each in headers]
    outer: list[tuple[int, int]] = []
    for start, end in sorted(cuts, key=lambda cut: (cut[0], -cut[1])):
        if not outer or start >= outer[-1][1]:  # entries of an inline table are removed with it
            outer.append((start, end))
    for start, end in reversed(outer):
        text = text[:start] + text[end:]
    return _verify(text, expected, path)


def format_value(value: Any) -> str:
    """Return a value as TOML on one line. Raises `CannotSet`."""
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            return quote(value)
        case int() | float():
            return repr(value)
        case Mapping():
            fields = cast("Mapping[str, Any]", value).items()
            return "{ " + ", ".join(f"{format_key((name,))} = {format_value(each)}" for name, each in fields) + " }"
        case Sequence():
            return "[" + ", ".join(map(format_value, cast("Sequence[Any]", value))) + "]"
        case _:
            raise CannotSet(f"{value!r} cannot be written as TOML")


def _insert(layout: TomlLayout, path: Names, value: Any) -> str:
    text = layout.text
    inline = _find_inline_table(layout, path)
    if inline is not None:
        return _insert_into_inline(text, inline, path[len(inline.path) :], value)
    sibling = _find_dotted_sibling(layout, path)
    if sibling is not None:
        return _insert_line(text, sibling.value_end, f"{format_key(path[len(sibling.base) :])} = {format_value(value)}")
    table, line = path[:-1], f"{format_key(path[-1:])} = {format_value(value)}"
    header = next((each for each in layout.headers if each.path == table and not each.is_array), None)
    if table and header is None:
        gap = "" if not text.strip() else _newline(text)
        return _insert_line(text, len(text), f"{gap}[{format_key(table)}]{_newline(text)}{line}")
    inside = [each.value_end for each in layout.entries if each.base == table and not each.is_inline]
    if inside:
        return _insert_line(text, max(inside), line)
    if header is not None:
        return _insert_line(text, header.end, line)
    return _insert_before_tables(layout, line)


def _find_inline_table(layout: TomlLayout, path: Names) -> Entry | None:
    """Return the innermost `name = { … }` that contains the key."""
    found = [
        each
        for each in layout.entries
        if len(each.path) < len(path)
        and each.path == path[: len(each.path)]
        and layout.text.startswith("{", each.value_start)
    ]
    return max(found, key=lambda each: len(each.path), default=None)


def _find_dotted_sibling(layout: TomlLayout, path: Names) -> Entry | None:
    """Return the last entry of a table that is written in dotted keys: such a table cannot have a header."""
    found = [
        (length, each)
        for each in layout.entries
        for length in range(len(each.base) + 1, min(len(each.path), len(path)))
        if not each.is_inline and each.path[:length] == path[:length]
    ]
    return max(found, key=lambda each: (each[0], each[1].start), default=(0, None))[1]


def _insert_into_inline(text: str, table: Entry, rest: Names, value: Any) -> str:
    brace = table.value_end - 1
    inside = text[table.value_start + 1 : brace]
    addition = f"{format_key(rest)} = {format_value(value)}"
    if not inside.strip():
        return f"{text[: table.value_start]}{{ {addition} }}{text[table.value_end :]}"
    end = table.value_start + 1 + len(inside.rstrip())
    return f"{text[:end]}, {addition}{text[end:]}"


def _insert_before_tables(layout: TomlLayout, line: str) -> str:
    """Insert a top-level key before the first header and the comments directly above that header."""
    text, end = layout.text, _newline(layout.text)
    if not layout.headers:
        return _insert_line(text, len(text), line)
    at = _line_start(text, layout.headers[0].start)
    while at > 0 and text[_line_start(text, at - 1) : at].lstrip().startswith("#"):
        at = _line_start(text, at - 1)
    return f"{text[:at]}{line}{end}{end}{text[at:]}"


def _insert_line(text: str, at: int, line: str) -> str:
    """Insert a line after the one that contains offset `at`."""
    end = _line_end(text, at) if at < len(text) else at
    head = text[:end]
    if head and not head.endswith("\n"):
        head += _newline(text)
    return f"{head}{line}{_newline(text)}{text[end:]}"


def _span(layout: TomlLayout, entry: Entry) -> tuple[int, int]:
    """Return the offsets to cut: the lines of an entry, or its part of an inline table with one comma."""
    text = layout.text
    if not entry.is_inline:
        return _line_start(text, entry.start), _line_end(text, entry.value_end)
    comma = re.compile(r"[ \t]*,[ \t]*").match(text, entry.value_end)
    if comma:
        return entry.start, comma.end()
    before = re.compile(r",[ \t]*$").search(text[: entry.start])
    return (before.start() if before else entry.start), entry.value_end


def _line_start(text: str, at: int) -> int:
    return text.rfind("\n", 0, at) + 1


def _line_end(text: str, at: int) -> int:
    found = text.find("\n", at)
    return len(text) if found < 0 else found + 1


def _newline(text: str) -> str:
    return "\r\n" if "\r\n" in text else "\n"


def _put(values: dict[str, Any], path: Names, value: Any) -> None:
    for length, name in enumerate(path[:-1], 1):
        inner = values.setdefault(name, {})
        if not isinstance(inner, dict):
            raise CannotSet(f"{format_key(path[:length])} is not a table in this file; edit the file by hand")
        values = cast("dict[str, Any]", inner)
    if isinstance(values.get(path[-1]), dict) and not isinstance(value, dict):
        raise CannotSet(f"{format_key(path)} is a table in this file; remove it first")
    values[path[-1]] = value


def _get_list(values: dict[str, Any], path: Names) -> list[Any]:
    found: Any = values
    for name in path:
        found = found[name]
    if not isinstance(found, list):
        raise CannotSet(f"{format_key(path)} is not a list in this file; edit the file by hand")
    return cast("list[Any]", found)


def _split(text: str, start: int, end: int) -> tuple[str, str, str]:
    return text[:start], text[start:end], text[end:]


def _delete(values: dict[str, Any], path: Names) -> bool:
    for name in path[:-1]:
        inner = values.get(name)
        if not isinstance(inner, dict):
            return False
        values = cast("dict[str, Any]", inner)
    return values.pop(path[-1], None) is not None


def _verify(text: str, expected: dict[str, Any], path: Names) -> str:
    try:
        parsed = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        parsed = None
    if parsed is None or _drop_empty(parsed) != _drop_empty(expected):
        raise CannotSet(f"{format_key(path)} cannot be changed without touching other keys; edit the file by hand")
    return text


def _drop_empty(values: dict[str, Any]) -> dict[str, Any]:
    """Remove empty tables: removing the last dotted key of a table also removes the table."""
    found = {name: _drop_empty(cast("dict[str, Any]", v)) if isinstance(v, dict) else v for name, v in values.items()}
    return {name: value for name, value in found.items() if value != {}}
