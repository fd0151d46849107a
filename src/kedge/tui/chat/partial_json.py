"""A tool call's input while the model still writes it: whatever can be told of the JSON so far."""

from __future__ import annotations

import re
from typing import cast

import msgspec

MAX_PARSED_CHARS = 4_000  # of JSON that is still written: what a header shows of it stands at the beginning

Json = dict[str, object]

_STRING = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)
_TRAILING = re.compile(r"[,:\s]+$")


def parsed(text: str) -> Json:
    """The object, perhaps without its end; empty if there is none."""
    try:
        return _object(msgspec.json.decode(text))
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return _object(_mended(text[:MAX_PARSED_CHARS]))


def _object(value: object) -> Json:
    return cast("Json", value) if isinstance(value, dict) else {}


def _mended(text: str) -> object:
    """Close what is open; if that is no JSON, leave out the member that is half there."""
    for candidate in _candidates(text):
        try:
            return msgspec.json.decode(candidate)
        except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
            continue
    return None


def _candidates(text: str) -> list[str]:
    stack: list[str] = []
    at = 0
    last_comma: tuple[int, tuple[str, ...]] | None = None  # where the last whole member of the object ends
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
    if rest:  # inside a string: an escape may be cut in two
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
