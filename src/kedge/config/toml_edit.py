"""Changing one key of a TOML text. Every other line stays as it is, comments and all; what cannot be done is refused.

Each change is proven before it is handed out: the new text must say what the old one said, with that key and nothing
else changed.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any, cast

from kedge.config.errors import CannotSet
from kedge.config.keys import quoted, spelled
from kedge.config.toml_layout import Entry, Layout

Names = tuple[str, ...]


def set_key(text: str, path: Names, value: Any) -> str:
    """The text with `path` set to `value`: in its place, or beside its neighbours, or in a table of its own."""
    layout, wanted = Layout(text), tomllib.loads(text)
    _put(wanted, path, value)
    entry = next((each for each in layout.entries if each.path == path), None)
    if entry is not None:
        return _proven(text[: entry.value_start] + written(value) + text[entry.value_end :], wanted, path)
    return _proven(_inserted(layout, path, value), wanted, path)


def remove_key(text: str, path: Names) -> str:
    """The text without `path`: a value with its line, or a table with all that is in it. The same text if not there."""
    layout, wanted = Layout(text), tomllib.loads(text)
    if not _take(wanted, path):
        return text
    cuts = [_span(layout, each) for each in layout.entries if each.path[: len(path)] == path]
    headers = [each for each in layout.headers if each.path[: len(path)] == path]
    cuts += [(_line_start(text, each.start), _line_end(text, each.end)) for each in headers]
    outer: list[tuple[int, int]] = []
    for start, end in sorted(cuts, key=lambda cut: (cut[0], -cut[1])):
        if not outer or start >= outer[-1][1]:  # what lies in an inline table goes with it
            outer.append((start, end))
    for start, end in reversed(outer):
        text = text[:start] + text[end:]
    return _proven(text, wanted, path)


def written(value: Any) -> str:
    """A value in TOML, on one line."""
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            return quoted(value)
        case int() | float():
            return repr(value)
        case Mapping():
            fields = cast("Mapping[str, Any]", value).items()
            return "{ " + ", ".join(f"{spelled((name,))} = {written(each)}" for name, each in fields) + " }"
        case Sequence():
            return "[" + ", ".join(map(written, cast("Sequence[Any]", value))) + "]"
        case _:
            raise CannotSet(f"TOML has no way to write {value!r}")


def _inserted(layout: Layout, path: Names, value: Any) -> str:
    text = layout.text
    around = _inline_around(layout, path)
    if around is not None:
        return _into_inline(text, around, path[len(around.path) :], value)
    neighbour = _dotted_neighbour(layout, path)
    if neighbour is not None:
        return _after(text, neighbour.value_end, f"{spelled(path[len(neighbour.base) :])} = {written(value)}")
    table, line = path[:-1], f"{spelled(path[-1:])} = {written(value)}"
    header = next((each for each in layout.headers if each.path == table and not each.is_array), None)
    if table and header is None:
        gap = "" if not text.strip() else _newline(text)
        return _after(text, len(text), f"{gap}[{spelled(table)}]{_newline(text)}{line}")
    inside = [each.value_end for each in layout.entries if each.base == table and not each.is_inline]
    if inside:
        return _after(text, max(inside), line)
    if header is not None:
        return _after(text, header.end, line)
    return _before_tables(layout, line)


def _inline_around(layout: Layout, path: Names) -> Entry | None:
    """The innermost `name = { … }` that the key belongs in."""
    found = [
        each
        for each in layout.entries
        if len(each.path) < len(path)
        and each.path == path[: len(each.path)]
        and layout.text.startswith("{", each.value_start)
    ]
    return max(found, key=lambda each: len(each.path), default=None)


def _dotted_neighbour(layout: Layout, path: Names) -> Entry | None:
    """The last entry of a table that is written in dotted keys: such a table can have no header of its own."""
    found = [
        (length, each)
        for each in layout.entries
        for length in range(len(each.base) + 1, min(len(each.path), len(path)))
        if not each.is_inline and each.path[:length] == path[:length]
    ]
    return max(found, key=lambda each: (each[0], each[1].start), default=(0, None))[1]


def _into_inline(text: str, table: Entry, rest: Names, value: Any) -> str:
    brace = table.value_end - 1
    inside = text[table.value_start + 1 : brace]
    addition = f"{spelled(rest)} = {written(value)}"
    if not inside.strip():
        return f"{text[: table.value_start]}{{ {addition} }}{text[table.value_end :]}"
    end = table.value_start + 1 + len(inside.rstrip())
    return f"{text[:end]}, {addition}{text[end:]}"


def _before_tables(layout: Layout, line: str) -> str:
    """A first key of the document goes before its first header, above the comments that speak of that."""
    text, end = layout.text, _newline(layout.text)
    if not layout.headers:
        return _after(text, len(text), line)
    at = _line_start(text, layout.headers[0].start)
    while at > 0 and text[_line_start(text, at - 1) : at].lstrip().startswith("#"):
        at = _line_start(text, at - 1)
    return f"{text[:at]}{line}{end}{end}{text[at:]}"


def _after(text: str, at: int, line: str) -> str:
    """The text with another line behind the one that `at` is in."""
    end = _line_end(text, at) if at < len(text) else at
    head = text[:end]
    if head and not head.endswith("\n"):
        head += _newline(text)
    return f"{head}{line}{_newline(text)}{text[end:]}"


def _span(layout: Layout, entry: Entry) -> tuple[int, int]:
    """What goes when an entry is removed: its lines, or its part of an inline table with one comma."""
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
    for place, name in enumerate(path[:-1], 1):
        inner = values.setdefault(name, {})
        if not isinstance(inner, dict):
            raise CannotSet(f"{spelled(path[:place])} is not a table there; change the file by hand")
        values = cast("dict[str, Any]", inner)
    if isinstance(values.get(path[-1]), dict) and not isinstance(value, dict):
        raise CannotSet(f"{spelled(path)} is a table there; remove it first")
    values[path[-1]] = value


def _take(values: dict[str, Any], path: Names) -> bool:
    for name in path[:-1]:
        inner = values.get(name)
        if not isinstance(inner, dict):
            return False
        values = cast("dict[str, Any]", inner)
    return values.pop(path[-1], None) is not None


def _proven(text: str, wanted: dict[str, Any], path: Names) -> str:
    try:
        said = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        said = None
    if said is None or _full(said) != _full(wanted):
        raise CannotSet(f"{spelled(path)} cannot be changed there without touching other keys; change the file by hand")
    return text


def _full(values: dict[str, Any]) -> dict[str, Any]:
    """Without tables that are empty: the last dotted key of a table takes it along."""
    found = {name: _full(cast("dict[str, Any]", v)) if isinstance(v, dict) else v for name, v in values.items()}
    return {name: value for name, value in found.items() if value != {}}
