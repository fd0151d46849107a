"""Permission rules: `tool` or `tool(pattern)`, from the configuration and the command line.

`bash`, `view` (`read`), `edit` (`write`) and `fetch` name a kind of access, by whichever tool; any other name is a
tool. docs/permissions.md explains the patterns.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Sequence
from typing import Literal
from urllib.parse import urlsplit

import msgspec

from kedge.config.rules import KINDS, BadRule, WordPattern, first_wildcard, join_wildcards, read_rule
from kedge.tools.permissions.shell import Word
from kedge.tools.port import AccessKind

_CAN_FOLD = sys.platform == "darwin"  # file systems ignore case there, so denials must, too

_PLAIN_WORD = re.compile(r"[A-Za-z0-9_@%+=:,./-]+")

MAX_WORD_CHARS = 4096

# They run a module in the same way: only the version may differ. (`python2` is another language.)
PYTHON_NAMES = ("python", "python3", *(f"python3.{minor}" for minor in range(50)))

Match = Literal["yes", "no", "maybe"]


class Rule(msgspec.Struct, frozen=True):
    text: str
    name: str
    words: tuple[WordPattern, ...] | None = None  # for bash
    is_open: bool = False  # for bash: ends in ` *`, so more words may follow
    path: re.Pattern[str] | None = None
    domain: str | None = None
    query: re.Pattern[str] | None = None
    python: str | None = None  # for bash: a name of Python that the first word matches

    @property
    def is_whole(self) -> bool:
        """Whether it is a name without a pattern, which matches every access."""
        return self.words is None and self.path is None and self.domain is None and self.query is None

    def is_about(self, tool: str, kind: AccessKind) -> bool:
        named = KINDS.get(self.name)
        if named is not None:
            return named == kind and (kind != "execute" or tool == "bash")
        if self.name.endswith("*"):
            return tool.startswith(self.name[:-1])
        return self.name == tool

    def matches_path(self, path: str, *, is_denial: bool = False) -> bool:
        if self.path is None:
            return self.is_whole
        if is_denial and _CAN_FOLD:
            return re.fullmatch(self.path.pattern, path, re.DOTALL | re.IGNORECASE) is not None
        return self.path.fullmatch(path) is not None

    def matches_url(self, url: str) -> bool:
        if self.domain is None:
            return self.is_whole
        host = host_of(url)
        if host is None:
            return False
        return host.endswith(self.domain[1:]) if self.domain.startswith("*.") else host == self.domain

    def matches_query(self, query: str) -> bool:
        return self.is_whole if self.query is None else self.query.fullmatch(query) is not None

    def matches_words(self, words: Sequence[Word]) -> Match:
        """Whether the rule matches a simple command, in any equal form; `maybe` if that depends on an unknown word."""
        if self.words is None:
            return "yes" if self.is_whole else "no"
        found = {self._matches_form(form) for form in self._find_equal_forms(words)}
        if "yes" in found:
            return "yes"
        if self.python and len(words) > 1 and words[1].text is None and words[0].text in PYTHON_NAMES:  # it may be -m
            found.add(self._matches_form((Word(self.python), *words[1:])))
        return "no" if found == {"no"} else "maybe"

    def _find_equal_forms(self, words: Sequence[Word]) -> Iterator[Sequence[Word]]:
        """The command, and the forms of it that run the same Python module and that this rule may match."""
        yield words
        module = find_module(words)
        if module and self.python:
            yield (Word(self.python), Word("-m"), *module)
            if module[0].text and not module[0].is_glob:
                yield (Word(self.python), Word(f"-m{module[0].text}"), *module[1:])
        if module and module[0].text == "pytest" and not module[0].is_glob:
            yield module

    def _matches_form(self, words: Sequence[Word]) -> Match:
        assert self.words is not None
        found: Match = "yes"
        for index, pattern in enumerate(self.words):
            if index >= len(words):
                return "no"
            word = words[index]
            if word.text is None and not word.is_one:
                return "maybe"  # it may be no word, or several
            if word.text is None or word.is_glob:
                if not (pattern.is_any and word.is_one and not word.is_glob):
                    found = "maybe"
            elif len(word.text) > MAX_WORD_CHARS:
                found = "maybe"  # matching costs the length of the word times that of the pattern
            elif not pattern.regex.fullmatch(word.text):
                return "no"
        rest = words[len(self.words) :]
        if self.is_open or not rest:
            return found
        return "maybe" if all(word.text is None and not word.is_one for word in rest) else "no"


def find_module(words: Sequence[Word]) -> Sequence[Word]:
    """The Python module that a command runs, and its arguments; empty if it is no such command.

    `pytest` runs the module of its name. (Other programs do not count: `python -m ruff` runs a `ruff.py` of the
    workspace, which `ruff` does not. `pytest` runs the code of the workspace in any case.)
    """
    name = words[0].text if words and not words[0].is_glob else None
    if name == "pytest":
        return words
    if name not in PYTHON_NAMES or len(words) < 2 or words[1].is_glob or not (words[1].text or "").startswith("-m"):
        return ()
    joined = (words[1].text or "").removeprefix("-m")
    return (Word(joined), *words[2:]) if joined else words[2:]


def host_of(url: str) -> str | None:
    try:
        host = urlsplit(url).hostname
    except ValueError:
        return None
    return host.rstrip(".").lower() if host else None


def parse_rule(text: str, directory: str, home: str | None) -> Rule:
    """Parse a rule; relative paths in it start at `directory`. Raises BadRule."""
    written = read_rule(text)
    path = None if written.path is None else path_regex(text, written.path, directory, home)
    words = written.words
    return Rule(
        text,
        written.name,
        words=words,
        is_open=written.is_open,
        path=path,
        domain=written.domain,
        query=written.query,
        python=next((name for name in PYTHON_NAMES if words[0].regex.fullmatch(name)), None) if words else None,
    )


def path_regex(rule: str, pattern: str, directory: str, home: str | None) -> re.Pattern[str]:
    """A regex for a path with `*`, `**` and `?`. The part before them is resolved, like the paths to compare with."""
    if pattern == "~" or pattern.startswith("~/"):
        if home is None:
            raise BadRule(rule, "there is no home directory (HOME is not set); write the path from / on.")
        pattern = home + pattern[1:]
    if pattern.endswith("/") and pattern.strip("/"):
        pattern += "**"
    absolute = "/" + pattern.lstrip("/") if pattern.startswith("/") else f"{directory}/{pattern}"
    parts = [part for part in absolute.split("/") if part not in ("", ".")]
    first = first_wildcard(parts)
    if ".." in parts[first:]:  # after a directory whose own name has a star
        raise BadRule(rule, "`..` cannot follow a wildcard; write the path without it.")
    base = os.path.realpath("/" + "/".join(parts[:first]))
    return re.compile(("" if base == "/" else re.escape(base)) + _below(parts[first:]) or "/", re.DOTALL)


def _below(parts: Sequence[str]) -> str:
    """A regex for path components; `**` matches any number of directories."""
    pieces = [""]
    for part in parts:
        if part == "**":
            pieces.append("")
        else:
            pieces[-1] += f"/{_component_regex(part)}(?![^/])"
    return join_wildcards(pieces, "(?:/[^/]+)")


def quote_word(text: str) -> str:
    """Write a word so that `split_words` reads the same word."""
    if _PLAIN_WORD.fullmatch(text):
        return text
    return "'" + text.replace("'", "'\\''") + "'"


def quote_path(path: str) -> str:
    """Write a path so that its characters are not wildcards."""
    return re.sub(r"([*?\\])", r"\\\1", path)


def quote_path_from_home(path: str, home: str | None) -> str:
    """Write an absolute path as `quote_path` does; below the home it begins with `~`, which is shorter to read."""
    if home and home != "/" and path.startswith(f"{home}/"):
        return f"~{quote_path(path[len(home) :])}"
    return quote_path(path)


def _component_regex(part: str) -> str:
    """A regex for one path component: `*` matches any characters, `?` one, a backslash quotes the next."""
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
    return join_wildcards(pieces, "[^/]")
