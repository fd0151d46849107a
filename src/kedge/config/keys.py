"""Keys as people write them: names joined by dots, a name in quotes where it holds more than letters and digits."""

from __future__ import annotations

import re
from collections.abc import Sequence

Key = tuple[str | int, ...]  # a number stands for an element of an array

_BARE = re.compile(r"[A-Za-z0-9_-]+")
_ESCAPES = {"b": "\b", "t": "\t", "n": "\n", "f": "\f", "r": "\r", '"': '"', "\\": "\\"}
_ESCAPE = re.compile(r"\\(?:u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|(.))", re.DOTALL)
_SHORT = {char: f"\\{name}" for name, char in _ESCAPES.items()}


class NotAKey(ValueError):
    """The text is no dotted key."""


def spelled(path: Sequence[str | int]) -> str:
    """The key as it is written: `providers.openai.models."gpt-5.1".tools`."""
    text = ""
    for name in path:
        if isinstance(name, int):
            text += f"[{name}]"
        else:
            text += ("." if text else "") + (name if _BARE.fullmatch(name) else quoted(name))
    return text


def quoted(text: str) -> str:
    """A text as a TOML string of one line."""
    return '"' + "".join(map(_escaped, text)) + '"'


def _escaped(char: str) -> str:
    if char in _SHORT:
        return _SHORT[char]
    return f"\\u{ord(char):04x}" if ord(char) < 0x20 or ord(char) == 0x7F else char


def parsed(text: str) -> tuple[str, ...]:
    """The names of a key that a person wrote."""
    try:
        names, end = read_key(text, 0)
    except (IndexError, ValueError):
        raise NotAKey(text) from None
    if text[end:].strip(" \t"):
        raise NotAKey(text)
    return names


def read_key(text: str, at: int) -> tuple[tuple[str, ...], int]:
    """The dotted key that begins at `at`, and where it ends, without the white space behind it."""
    names: list[str] = []
    while True:
        at = skip_blanks(text, at)
        name, at = _read_name(text, at)
        names.append(name)
        after = skip_blanks(text, at)
        if text[after : after + 1] != ".":
            return tuple(names), at
        at = after + 1


def skip_blanks(text: str, at: int) -> int:
    while text[at : at + 1] in (" ", "\t") and at < len(text):
        at += 1
    return at


def _read_name(text: str, at: int) -> tuple[str, int]:
    if text[at : at + 1] == "'":
        end = text.index("'", at + 1)
        return text[at + 1 : end], end + 1
    if text[at : at + 1] == '"':
        end = at + 1
        while text[end] != '"':
            end += 2 if text[end] == "\\" else 1
        return _ESCAPE.sub(_unescaped, text[at + 1 : end]), end + 1
    bare = _BARE.match(text, at)
    if bare is None:
        raise NotAKey(text)
    return bare[0], bare.end()


def _unescaped(found: re.Match[str]) -> str:
    short, long, char = found.groups()
    if char is None:
        return chr(int(short or long, 16))
    if char not in _ESCAPES:
        raise NotAKey(found[0])
    return _ESCAPES[char]
