"""Dotted TOML keys: parse and format them, and quote strings."""

from __future__ import annotations

import re
from collections.abc import Sequence

Key = tuple[str | int, ...]  # an int is an index into an array

_BARE = re.compile(r"[A-Za-z0-9_-]+")
_ESCAPES = {"b": "\b", "t": "\t", "n": "\n", "f": "\f", "r": "\r", '"': '"', "\\": "\\"}
_ESCAPE = re.compile(r"\\(?:u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|(.))", re.DOTALL)
_SHORT = {char: f"\\{name}" for name, char in _ESCAPES.items()}


class InvalidKey(ValueError):
    """The text is not a dotted key."""


def format_key(path: Sequence[str | int]) -> str:
    """Return the key as TOML text: `providers.openai.models."gpt-5.1".tools`."""
    text = ""
    for name in path:
        if isinstance(name, int):
            text += f"[{name}]"
        else:
            text += ("." if text else "") + (name if _BARE.fullmatch(name) else quote(name))
    return text


def quote(text: str) -> str:
    """Return the text as a TOML basic string on one line."""
    return '"' + "".join(map(_escape, text)) + '"'


def _escape(char: str) -> str:
    if char in _SHORT:
        return _SHORT[char]
    return f"\\u{ord(char):04x}" if ord(char) < 0x20 or ord(char) == 0x7F else char


def parse_key(text: str) -> tuple[str, ...]:
    """Split a dotted key into its names. Raises `InvalidKey`."""
    try:
        names, end = read_key(text, 0)
    except (IndexError, ValueError):
        raise InvalidKey(text) from None
    if text[end:].strip(" \t"):
        raise InvalidKey(text)
    return names


def read_key(text: str, at: int) -> tuple[tuple[str, ...], int]:
    """Parse the dotted key that starts at `at`; return its names and the index behind it."""
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
        return _ESCAPE.sub(_unescape, text[at + 1 : end]), end + 1
    bare = _BARE.match(text, at)
    if bare is None:
        raise InvalidKey(text)
    return bare[0], bare.end()


def _unescape(found: re.Match[str]) -> str:
    short, long, char = found.groups()
    if char is None:
        return chr(int(short or long, 16))
    if char not in _ESCAPES:
        raise InvalidKey(found[0])
    return _ESCAPES[char]
