"""Parse permission rules: `tool` or `tool(pattern)`.

Matching is in `kedge/tools/permissions`; both use this parser, so that every accepted configuration works in a run.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

import msgspec

from kedge.protocol.tools import BUILT_IN_TOOLS

Kind = Literal["read", "write", "execute", "fetch"]
KINDS: dict[str, Kind] = {
    "bash": "execute",
    "view": "read",
    "read": "read",
    "edit": "write",
    "write": "write",
    "fetch": "fetch",
}
_RULE = re.compile(r"([a-z][a-zA-Z0-9_.-]*\*?)(?:\((.*)\))?", re.DOTALL)
_DOMAIN = re.compile(r"(?:\*\.)?[a-z0-9_](?:[a-z0-9_.-]*[a-z0-9_])?|\[[0-9a-f:.]+\]", re.IGNORECASE)
_OPERATORS = frozenset(";|&<>()`$\n{}#")


class BadRule(ValueError):
    """An invalid rule, with what is expected instead."""

    def __init__(self, rule: str, expected: str) -> None:
        super().__init__(f"The permission rule {rule[:100]!r} is invalid: {expected}")
        self.rule = rule
        self.expected = expected


class WordPattern(msgspec.Struct, frozen=True):
    regex: re.Pattern[str]
    is_any: bool  # a bare `*`: exactly one word, whatever it is


class WrittenRule(msgspec.Struct, frozen=True):
    """A parsed rule. Paths are as written, not resolved."""

    name: str
    words: tuple[WordPattern, ...] | None = None  # for bash
    is_open: bool = False  # for bash: ends in ` *`, so more words may follow
    path: str | None = None  # as written
    domain: str | None = None
    query: re.Pattern[str] | None = None  # of a web search


def read_rule(text: str) -> WrittenRule:
    """Raises BadRule."""
    found = _RULE.fullmatch(text.strip())
    if found is None:
        raise BadRule(text, "write `tool` or `tool(pattern)`, like `bash(git status)` or `edit(src/**)`.")
    name, pattern = found[1], found[2]
    kind = KINDS.get(name)
    tool = BUILT_IN_TOOLS.get(name)
    if kind is None and tool is None and not name.startswith(("mcp_", "lsp_")):
        known = ", ".join(sorted({*KINDS, *BUILT_IN_TOOLS}))
        raise BadRule(text, f"unknown tool {name!r}; use one of {known}, or a name that starts with mcp_ or lsp_.")
    if pattern is None:
        return WrittenRule(name)
    if not pattern.strip():
        raise BadRule(text, f"the pattern is empty; write `{name}` alone to cover everything.")
    if tool is not None and tool.rule_pattern == "command":
        words, is_open = split_words(text, pattern)
        return WrittenRule(name, words=words, is_open=is_open)
    if tool is not None and tool.rule_pattern == "domain":
        return WrittenRule(name, domain=_domain(text, pattern.strip()))
    if tool is not None and tool.rule_pattern == "text":
        return WrittenRule(name, query=_query(pattern.strip()))
    if name == "read" or (tool is not None and tool.rule_pattern == "path"):
        return WrittenRule(name, path=_path(text, pattern.strip()))
    raise BadRule(text, f"{name} takes no pattern; write `{name}` alone.")


def first_wildcard(parts: list[str]) -> int:
    """Return the index of the first part with a wildcard; the number of parts if there is none."""
    return next((index for index, part in enumerate(parts) if re.search(r"[*?\\]", part)), len(parts))


def _path(rule: str, pattern: str) -> str:
    if "\0" in pattern:
        raise BadRule(rule, "a path cannot contain a NUL character.")
    if pattern.startswith("~") and pattern != "~" and not pattern.startswith("~/"):
        raise BadRule(rule, "~ works for your own home only; write the absolute path.")
    parts = pattern.split("/")
    if ".." in parts[first_wildcard(parts) :]:
        raise BadRule(rule, "`..` cannot follow a wildcard; write the path without it.")
    return pattern


def _query(pattern: str) -> re.Pattern[str]:
    """A regex for a whole text, in which `*` matches any characters."""
    pieces = [re.escape(piece) for piece in pattern.split("*")]
    return re.compile(join_wildcards(pieces, "."), re.DOTALL | re.IGNORECASE)


def _domain(rule: str, pattern: str) -> str:
    head, colon, domain = pattern.partition(":")
    if head != "domain" or not colon or not _DOMAIN.fullmatch(domain):
        raise BadRule(rule, "write `fetch(domain:example.com)`, or `fetch(domain:*.example.com)` for its subdomains.")
    return domain.strip("[]").rstrip(".").lower()


def split_words(rule: str, pattern: str) -> tuple[tuple[WordPattern, ...], bool]:
    """Parse the words of one simple command; also return whether more may follow (a last bare `*`). Raises BadRule."""
    words: list[WordPattern] = []
    pieces = [""]  # regular expressions between the stars
    bare = ""  # the word as written, to recognize a bare `*`
    is_word = False

    def end() -> None:
        nonlocal pieces, bare, is_word
        if is_word:
            words.append(WordPattern(re.compile(join_wildcards(pieces, "."), re.DOTALL), bare == "*"))
        pieces, bare, is_word = [""], "", False

    index = 0
    while index < len(pattern):
        char = pattern[index]
        if char in " \t":
            end()
        elif char in "'\"":
            close = index + 1
            text = ""
            while close < len(pattern) and pattern[close] != char:
                if char == '"' and pattern[close] == "\\" and pattern[close + 1 : close + 2] in ("\\", '"', "$", "`"):
                    close += 1
                text += pattern[close]
                close += 1
            if close >= len(pattern):
                raise BadRule(rule, f"a quote ({char}) is not closed.")
            pieces[-1] += re.escape(text)
            bare, is_word, index = bare + char, True, close
        elif char == "\\":
            index += 1
            if index >= len(pattern):
                raise BadRule(rule, "nothing follows the backslash at the end.")
            pieces[-1] += re.escape(pattern[index])
            bare, is_word = bare + "\\", True
        elif char in _OPERATORS and not (char == "#" and is_word):
            raise BadRule(rule, f"a rule names one simple command; quote {char!r} if it is part of a word.")
        else:
            if char == "*":
                pieces.append("")
            else:
                pieces[-1] += re.escape(char)
            bare, is_word = bare + char, True
        index += 1
    end()
    is_open = bool(words) and words[-1].is_any
    return tuple(words[:-1] if is_open else words), is_open


def join_wildcards(pieces: Sequence[str], character: str) -> str:
    """Join regular expressions with "any number of `character`" between them. Each piece must match a fixed length.

    Each middle piece is an atomic group that matches at its first possible position. That is never worse for the pieces
    behind it, and avoids backtracking: a plain expression needs exponential time for `*a*a*a*a*b`.
    """
    first, *rest = pieces
    if not rest:
        return first
    *middle, last = rest
    found = "".join(f"(?>{character}*?{piece})" for piece in middle if piece)
    return f"{first}{found}{character}*{last}"
