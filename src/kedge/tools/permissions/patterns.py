"""Words and paths as a rule writes them, and the parts of its paths. Quotes and backslashes make literal."""

from __future__ import annotations

import re

from kedge.config.wildcards import starred

_PLAIN = re.compile(r"[A-Za-z0-9_@%+=:,./-]+")


def quote_word(text: str) -> str:
    """A word as a rule writes it, so that `split_words` reads the same, letter for letter."""
    if _PLAIN.fullmatch(text):
        return text
    return "'" + text.replace("'", "'\\''") + "'"


def quote_path(path: str) -> str:
    """A path as a rule writes it."""
    return re.sub(r"([*?\\])", r"\\\1", path)


def component_regex(part: str) -> str:
    """One part of a path: `*` any characters, `?` one, a backslash makes the next literal."""
    pieces, index = [""], 0
    while index < len(part):
        char = part[index]
        if char == "*":
            pieces.append("")
        elif char == "\\" and index + 1 < len(part):
            index += 1
            pieces[-1] += re.escape(part[index])
        else:
            pieces[-1] += "[^/]" if char == "?" else re.escape(char)
        index += 1
    return starred(pieces, "[^/]")
