"""File name patterns: `*.py` matches at any depth, `src/**/*.{ts,tsx}` from the start of the search."""

from __future__ import annotations

import re
from collections.abc import Callable

from kedge.config.rules import join_wildcards
from kedge.tools.errors import ToolError

MAX_PATTERN_CHARS = 1_000
MAX_ALTERNATIVES = 100  # of braces, multiplied

_SPECIAL = re.compile(r"([*?\[\]{}\\!#])")


def expand_braces(pattern: str) -> list[str]:
    """Expand `*.{ts,tsx}` to `*.ts` and `*.tsx`; braces may be nested. Raises ToolError."""
    if len(pattern) > MAX_PATTERN_CHARS:
        raise ToolError(f"The pattern is over {MAX_PATTERN_CHARS} characters long.", "Use a shorter one.")
    expanded = _expand(pattern)
    if len(expanded) > MAX_ALTERNATIVES:
        raise ToolError(f"The pattern expands to over {MAX_ALTERNATIVES} patterns.", "Use a simpler one.")
    return expanded


def _expand(pattern: str) -> list[str]:
    start = _find_unescaped(pattern, "{")
    if start < 0:
        return [pattern]
    depth, commas = 0, [start]
    for i in range(start, len(pattern)):
        match pattern[i]:
            case "{":
                depth += 1
            case "," if depth == 1:
                commas.append(i)
            case "}":
                depth -= 1
                if depth == 0:
                    ends = [*commas[1:], i]
                    inner = [pattern[a + 1 : b] for a, b in zip(commas, ends, strict=True)]
                    whole = [pattern[:start] + each + pattern[i + 1 :] for each in inner[: MAX_ALTERNATIVES + 1]]
                    return [each for one in whole for each in _expand(one)][: MAX_ALTERNATIVES + 1]
            case _:
                pass
    raise ToolError(f"The pattern {pattern!r} has a brace that is not closed.")


def _find_unescaped(pattern: str, character: str) -> int:
    i = 0
    while i < len(pattern):
        if pattern[i] == "\\":
            i += 1
        elif pattern[i] == character:
            return i
        i += 1
    return -1


def check_classes(pattern: str) -> None:
    """Raise `ToolError` for an unclosed bracket, which would match nothing."""
    i = 0
    while i < len(pattern):
        if pattern[i] == "\\":
            i += 1
        elif pattern[i] == "[":
            i = _class_end(pattern, i)
            if i < 0:
                raise ToolError(
                    f"The pattern {pattern!r} has a [ that is not closed.", "Write \\[ for the character itself."
                )
        i += 1


def is_literal(part: str) -> bool:
    return _SPECIAL.search(part) is None


def escape(path: str) -> str:
    """Return a pattern that matches only this path."""
    return _SPECIAL.sub(r"\\\1", path)


def prefix_pattern(directory: str, pattern: str) -> str:
    """Make a pattern relative to `directory` relative to the directory above. One without a slash matches any depth."""
    plain = pattern.removeprefix("./")
    if "/" not in plain.rstrip("/") or directory in ("", "."):
        return plain
    return f"/{escape(directory)}/{plain.lstrip('/')}"


def loosen(pattern: str) -> str:
    """Return a pattern without `?` and classes that matches at least as much, and means the same to every program."""
    pieces: list[str] = []
    is_loose = False  # the last piece is a star added here: a second one would mean directories
    i = 0
    while i < len(pattern):
        end = i + 1
        if pattern[i] == "\\":
            end = i + 2
        elif pattern[i] == "[":
            end = _class_end(pattern, i) + 1 or end
        piece = "*" if pattern[i] == "?" or end - i > 2 else pattern[i:end]
        was_loose, is_loose = is_loose, piece != pattern[i:end]
        if piece == "*" and (was_loose or (is_loose and pieces[-1:] == ["*"])):
            is_loose = True
        else:
            pieces.append(piece)
        i = end
    return "".join(pieces)


def make_matcher(patterns: list[str]) -> Callable[[str], bool]:
    """Return a function that tells whether a path matches one of these patterns, whose braces are expanded."""
    matches = re.compile("|".join(f"(?:{_regex(pattern)})" for pattern in patterns), re.DOTALL).fullmatch
    return lambda path: matches(path) is not None


def _regex(pattern: str) -> str:
    pattern = pattern.removeprefix("./")
    is_anywhere = "/" not in pattern.rstrip("/")
    pattern = pattern.removeprefix("/")
    parts = [[""]] if not is_anywhere else [[""], [""]]  # any directories between two of them, stars within them
    end, i = "", 0
    while i < len(pattern):
        is_start = i == 0 or pattern[i - 1] == "/"
        if is_start and pattern.startswith("**/", i):
            parts.append([""])
            i += 3
        elif is_start and pattern[i:] == "**":
            end = ".*"
            i += 2
        elif pattern[i] == "*":
            parts[-1].append("")
            i += 1
        else:
            piece, i = _character(pattern, i)
            parts[-1][-1] += piece
    return join_wildcards([join_wildcards(pieces, "[^/]") for pieces in parts], "(?:[^/]*/)") + end


def _character(pattern: str, i: int) -> tuple[str, int]:
    """Return the regex for the character or class at `i`, and the index after it."""
    if pattern[i] == "?":
        return "[^/]", i + 1
    if pattern[i] == "[" and (end := _class_end(pattern, i)) > 0:
        return _class(pattern[i + 1 : end]), end + 1
    if pattern[i] == "\\" and i + 1 < len(pattern):
        return re.escape(pattern[i + 1]), i + 2
    return re.escape(pattern[i]), i + 1


def _class_end(pattern: str, start: int) -> int:
    """Return the index of the closing bracket, or -1. A bracket right at the start is a member of the class."""
    i = start + 1
    if pattern[i : i + 1] in ("!", "^"):
        i += 1
    return pattern.find("]", i + 1)


def _class(inner: str) -> str:
    negated = inner[0] in "!^"
    body = re.sub(r"([\\\[\]^&~|])", r"\\\1", inner[1:] if negated else inner)
    return f"[^/{body}]" if negated else f"(?!/)[{body}]"
