"""Rules: `tool` or `tool(pattern)`, written by people in their configuration and on the command line.

`bash`, `view` (`read`), `edit` (`write`) and `fetch` name what is done, whichever tool does it; any other name is a
tool's own. What the patterns mean is in docs/permissions.md, word for word.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from typing import Literal
from urllib.parse import urlsplit

import msgspec

from kedge.tools.permissions.errors import BadRule
from kedge.tools.permissions.patterns import WordPattern, component_regex, split_words
from kedge.tools.permissions.words import Word
from kedge.tools.port import WantKind

KINDS: dict[str, WantKind] = {
    "bash": "execute",
    "view": "read",
    "read": "read",
    "edit": "write",
    "write": "write",
    "fetch": "fetch",
}
TOOLS = frozenset(
    {"multiedit", "download", "glob", "grep", "ls", "job_output", "job_kill", "agent", "todos", "question"}
)
_RULE = re.compile(r"([a-z][a-z0-9_.-]*\*?)(?:\((.*)\))?", re.DOTALL)
_DOMAIN = re.compile(r"(?:\*\.)?[a-z0-9_](?:[a-z0-9_.-]*[a-z0-9_])?|\[[0-9a-f:.]+\]", re.IGNORECASE)
_CAN_FOLD = sys.platform == "darwin"  # its file systems take SRC for src; a denial must, too

Match = Literal["yes", "no", "maybe"]


class Rule(msgspec.Struct, frozen=True):
    text: str
    name: str
    words: tuple[WordPattern, ...] | None = None  # of bash
    is_open: bool = False  # of bash: ends in ` *`, so that more words may follow
    path: re.Pattern[str] | None = None
    domain: str | None = None

    @property
    def is_whole(self) -> bool:
        """The name alone: whatever the tool does."""
        return self.words is None and self.path is None and self.domain is None

    def is_about(self, tool: str, kind: WantKind) -> bool:
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

    def matches_words(self, words: Sequence[Word]) -> Match:
        """Whether the rule names this simple command. `maybe`: a word is not known that decides it."""
        if self.words is None:
            return "yes" if self.is_whole else "no"
        found: Match = "yes"
        for index, pattern in enumerate(self.words):
            if index >= len(words):
                return "no"
            word = words[index]
            if word.text is None and not word.is_one:
                return "maybe"  # nothing, or several words
            if word.text is None or word.is_glob:
                if not (pattern.is_any and word.is_one and not word.is_glob):
                    found = "maybe"
            elif not pattern.regex.fullmatch(word.text):
                return "no"
        rest = words[len(self.words) :]
        if self.is_open or not rest:
            return found
        return "maybe" if all(word.text is None and not word.is_one for word in rest) else "no"


def host_of(url: str) -> str | None:
    try:
        host = urlsplit(url).hostname
    except ValueError:
        return None
    return host.rstrip(".").lower() if host else None


def parse_rule(text: str, directory: str, home: str | None) -> Rule:
    """Raises BadRule. Relative paths of the rule begin at `directory`."""
    found = _RULE.fullmatch(text.strip())
    if found is None:
        raise BadRule(text, "write `tool` or `tool(pattern)`, like `bash(git status)` or `edit(src/**)`.")
    name, pattern = found[1], found[2]
    kind = KINDS.get(name)
    if kind is None and name not in TOOLS and not name.startswith(("mcp_", "lsp_")):
        known = ", ".join(sorted({*KINDS, *TOOLS}))
        raise BadRule(
            text, f"there is no tool {name!r}; the names are {known}, and those that begin with mcp_ or lsp_."
        )
    if pattern is None:
        return Rule(text, name)
    if not pattern.strip():
        raise BadRule(text, f"the pattern is empty; write `{name}` alone to mean all that it does.")
    if kind == "execute":
        words, is_open = split_words(text, pattern)
        return Rule(text, name, words=words, is_open=is_open)
    if kind == "fetch":
        return Rule(text, name, domain=_domain(text, pattern.strip()))
    if kind in ("read", "write") or name in ("multiedit", "glob", "grep", "ls", "download"):
        return Rule(text, name, path=path_regex(text, pattern.strip(), directory, home))
    raise BadRule(text, f"{name} has no pattern; write `{name}` alone.")


def path_regex(rule: str, pattern: str, directory: str, home: str | None) -> re.Pattern[str]:
    """A path with `*`, `**` and `?`. What comes before them is resolved as the paths are that it is compared with."""
    if "\0" in pattern:
        raise BadRule(rule, "a path holds no NUL character.")
    if pattern == "~" or pattern.startswith("~/"):
        if home is None:
            raise BadRule(rule, "there is no home directory (HOME is not set); write the path from / on.")
        pattern = home + pattern[1:]
    elif pattern.startswith("~"):
        raise BadRule(rule, "only your own home can be written with ~; write the path from / on.")
    if pattern.endswith("/") and pattern.strip("/"):
        pattern += "**"
    absolute = "/" + pattern.lstrip("/") if pattern.startswith("/") else f"{directory}/{pattern}"
    parts = [part for part in absolute.split("/") if part not in ("", ".")]
    first = next((index for index, part in enumerate(parts) if re.search(r"[*?\\]", part)), len(parts))
    if ".." in parts[first:]:
        raise BadRule(rule, "`..` cannot follow a wildcard; write the path without it.")
    base = os.path.realpath("/" + "/".join(parts[:first]))
    regex = "" if base == "/" else re.escape(base)
    for part in parts[first:]:
        regex += r"(?:/[^/]+)*" if part == "**" else "/" + component_regex(part)
    return re.compile(regex or "/", re.DOTALL)


def _domain(rule: str, pattern: str) -> str:
    head, colon, domain = pattern.partition(":")
    if head != "domain" or not colon or not _DOMAIN.fullmatch(domain):
        raise BadRule(rule, "write `fetch(domain:example.com)`, or `fetch(domain:*.example.com)` for what is below it.")
    return domain.strip("[]").rstrip(".").lower()
