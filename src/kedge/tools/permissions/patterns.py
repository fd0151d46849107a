"""The patterns inside a rule: the words of a command, the parts of a path. Quotes and backslashes make literal."""

from __future__ import annotations

import re

import msgspec

from kedge.tools.permissions.errors import BadRule

_PLAIN = re.compile(r"[A-Za-z0-9_@%+=:,./-]+")
_OPERATORS = frozenset(";|&<>()`$\n{}#")


class WordPattern(msgspec.Struct, frozen=True):
    regex: re.Pattern[str]
    is_any: bool  # a bare `*`: any one word


def split_words(rule: str, pattern: str) -> tuple[tuple[WordPattern, ...], bool]:
    """The words of one simple command, and whether more may follow (a last bare `*`). Raises BadRule."""
    words: list[WordPattern] = []
    regex: list[str] = []
    bare = ""  # the word as written, to tell a bare `*`
    is_word = False

    def end() -> None:
        nonlocal regex, bare, is_word
        if is_word:
            words.append(WordPattern(re.compile("".join(regex), re.DOTALL), bare == "*"))
        regex, bare, is_word = [], "", False

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
            regex.append(re.escape(text))
            bare, is_word, index = bare + char, True, close
        elif char == "\\":
            index += 1
            if index >= len(pattern):
                raise BadRule(rule, "a backslash at the end has nothing to quote.")
            regex.append(re.escape(pattern[index]))
            bare, is_word = bare + "\\", True
        elif char in _OPERATORS and not (char == "#" and is_word):
            raise BadRule(rule, f"a rule names one simple command by its words; quote {char!r} if a word holds it.")
        else:
            regex.append(".*" if char == "*" else re.escape(char))
            bare, is_word = bare + char, True
        index += 1
    end()
    is_open = bool(words) and words[-1].is_any
    return tuple(words[:-1] if is_open else words), is_open


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
    regex, index = "", 0
    while index < len(part):
        char = part[index]
        if char == "\\" and index + 1 < len(part):
            index += 1
            regex += re.escape(part[index])
        else:
            regex += {"*": "[^/]*", "?": "[^/]"}.get(char, re.escape(char))
        index += 1
    return regex
