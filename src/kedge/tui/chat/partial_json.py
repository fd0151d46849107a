"""Parses the JSON input of a tool call that the model is still writing, as far as it goes."""

from __future__ import annotations

import re
from typing import cast

import msgspec

MAX_PARSED_CHARS = 4_000  # of incomplete JSON: a header shows the beginning only

Json = dict[str, object]

_STRING = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)
_TRAILING = re.compile(r"[,:\s]+$")


def parse_partial(text: str) -> Json:
    """Return the object, possibly without its end; empty if there is none."""
    try:
        return _object(msgspec.json.decode(text))
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return _object(_repair(text[:MAX_PARSED_CHARS]))


def _object(value: object) -> Json:
    return cast("Json", value) if isinstance(value, dict) else {}


def _repair(text: str) -> object:
    """Close open strings and brackets; if that is not JSON either, leave out the incomplete member."""
    for candidate in _candidates(text):
        try:
            return msgspec.json.decode(candidate)
        except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
            continue
    return None


def _candidates(text: str) -> list[str]:
    stack: list[str] = []
    at = 0
    last_comma: tuple[int, tuple[str, ...]] | None = None  # end of the last complete member
    while at < len(text):
        character = text[at]
        if character == '"':
            match = _STRING.match(text, at)
            if match is None:
                break
            at = match.end()
            continue
        if character in "{[":
            stack.append("}" if character == "{" else "]")
        elif character in "}]" and stack:
            stack.pop()
        elif character == ",":
            last_comma = (at, tuple(stack))
        at += 1
    closing = "".join(reversed(stack))
    rest = text[at:]
    candidates: list[str] = []
    if rest:  # inside a string: an escape sequence may be incomplete
        for cut in range(min(7, len(rest))):
            candidates.append(f'{text[: len(text) - cut]}"{closing}')
            if cut == 0 and "\\" not in rest[-6:]:
                break
        candidates.append(f'{text}":null{closing}')
        text = text[:at]
    bare = _TRAILING.sub("", text)
    candidates += [f"{bare}{closing}", f"{bare}:null{closing}"]
    if last_comma is not None:
        candidates.append(text[: last_comma[0]] + "".join(reversed(last_comma[1])))
    return [*candidates, f"{bare.rpartition('{')[0]}{{}}" if bare.startswith("{") else ""]
