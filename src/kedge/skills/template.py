"""Fills in the text of a skill or a command: arguments, directories, `` !`commands` `` and `@files`.

Arguments are text: what they contain is neither a command nor a file to insert, and in a command line they are quoted.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

MAX_COMMANDS = 20  # in one text
MAX_FILES = 20

_PIECE = re.compile(
    r"^```!\n(?P<block>[^`]{1,8000})\n```$"
    r"|(?<![\w`])!`(?P<command>[^`\n]{1,8000})`"
    r"|(?<![^\s(])@(?P<file>[~\w./$-][^\s`,;:!?()\[\]\"'<>]{0,999})",
    re.MULTILINE,
)
_PLACEHOLDER = re.compile(
    r"\\(?P<escaped>\$(?:ARGUMENTS|\d))"
    r"|\$ARGUMENTS\[(?P<index>\d{1,3})\]"
    r"|\$(?P<all>ARGUMENTS\b|\{ARGUMENTS\})"
    r"|\$(?:(?P<number>\d{1,3})\b|\{(?P<braced>\d{1,3})\})"
    r"|\$\{(?P<name>[A-Z_]{1,40})\}"
)
_FENCE = re.compile(r"^ {0,3}(`{3,}|~{3,})([^\n`]*)$", re.MULTILINE)
_PLAIN = re.compile(r"[A-Za-z0-9_@%+=:,./-]*")
# Where the quotes around an argument cannot be followed: expansions, here documents, quotes with escapes, comments
# (which may have an apostrophe), and text that a second shell reads.
_NESTED = re.compile(
    r"\$[({'\"]|`|<<|[<>]\(|(?:^|[\s;&|()])#|\beval\b"
    r"|\b(?:ba|da|k|z|)sh(?:[ \t]+-[a-zA-Z]{1,9}){0,4}[ \t]+-[a-zA-Z]{0,9}c\b",
    re.MULTILINE,
)


class Run(NamedTuple):
    """A command whose output takes the place of the piece. `problem`: why it must not run."""

    line: str
    problem: str = ""


class Mention(NamedTuple):
    """A file whose content takes the place of the piece, if it exists and may be read; else `@path` stays."""

    path: str


Piece = str | Run | Mention


class Filled(NamedTuple):
    pieces: Sequence[Piece]

    @property
    def commands(self) -> list[str]:
        """The command lines to run, each once."""
        return list(dict.fromkeys(piece.line for piece in self.pieces if isinstance(piece, Run) and not piece.problem))

    def join(self, show: Callable[[Run | Mention], str]) -> str:
        return "".join(piece if isinstance(piece, str) else show(piece) for piece in self.pieces).strip()


def fill(body: str, arguments: str | None, names: Mapping[str, str], *, with_files: bool) -> Filled:
    """Return the pieces of a text. `arguments` None: it was not called with a command line, so `$1` stays.

    `names` are the values of `${NAME}`; an unknown one stays as it is. Arguments that the text does not mention follow
    it. `with_files`: `@path` is a file to insert.
    """
    words = None if arguments is None else _Words(arguments, body)
    pieces: list[Piece] = []
    end = commands = files = 0
    fences = _find_fences(body)
    for found in _PIECE.finditer(body):
        if any(start < found.start() < stop for start, stop in fences):
            continue  # an example
        line, path = found["command"] or found["block"], found["file"]
        if line is not None and commands < MAX_COMMANDS:
            piece: Piece = _fill_command(line.strip(), words, names)
            commands += 1
        elif path is not None and with_files and files < MAX_FILES:
            stripped = path.rstrip(".")
            piece = Mention(_substitute(stripped, words, names))
            files += 1
        else:
            continue
        pieces += [_substitute(body[end : found.start()], words, names), piece]
        end = found.start() + 1 + len(path.rstrip(".")) if path is not None else found.end()
    pieces.append(_substitute(body[end:], words, names))
    if words is not None and words.text and not words.is_used:
        pieces.append(f"\n\n{words.text}")
    return Filled([piece for piece in pieces if piece != ""])


def _find_fences(body: str) -> list[tuple[int, int]]:
    """Return where fenced blocks of code begin and end; the last one may have no end."""
    fences: list[tuple[int, int]] = []
    opened: re.Match[str] | None = None
    for found in _FENCE.finditer(body):
        if opened is None:
            opened = found
        elif found[1].startswith(opened[1]) and not found[2].strip():
            fences.append((opened.start(), found.start()))
            opened = None
    return fences if opened is None else [*fences, (opened.start(), len(body))]


class _Words:
    """The arguments as text and as words."""

    def __init__(self, text: str, body: str) -> None:
        self.text = text.strip()
        try:
            self.words = shlex.split(self.text)
        except ValueError:  # a quote that is not closed
            self.words = self.text.split()
        self.is_used = False
        # A text that names `$0` counts from there, like the skills of other agents; others begin with `$1`.
        self._first = 0 if re.search(r"(?<!\\)\$(?:0\b|\{0\})", body) else 1

    def number(self, number: int) -> str:
        index = number - self._first
        return self.words[index] if 0 <= index < len(self.words) else ""

    def index(self, index: int) -> str:
        return self.words[index] if index < len(self.words) else ""


def _find_value(found: re.Match[str], words: _Words | None, names: Mapping[str, str]) -> tuple[str, bool] | None:
    """Return the value of a placeholder, and whether it is of an argument; None if it stays as it is."""
    if found["name"] is not None:
        value = names.get(found["name"])
        return None if value is None else (value, False)
    if words is None:
        return ("", True) if found["all"] else None
    words.is_used = True
    if found["all"]:
        return words.text, True
    if found["index"] is not None:
        return words.index(int(found["index"])), True
    return words.number(int(found["number"] or found["braced"])), True


def _substitute(text: str, words: _Words | None, names: Mapping[str, str]) -> str:
    def replace(found: re.Match[str]) -> str:
        if found["escaped"] is not None:
            return found["escaped"]
        value = _find_value(found, words, names)
        return found[0] if value is None else value[0]

    return _PLACEHOLDER.sub(replace, text)


def _fill_command(line: str, words: _Words | None, names: Mapping[str, str]) -> Run:
    """Return the command with its placeholders replaced; each argument is text for the command, and never shell."""
    pieces: list[str] = []
    end = 0
    quote = ""
    is_nested = _NESTED.search(_PLACEHOLDER.sub("", line)) is not None
    for found in _PLACEHOLDER.finditer(line):
        quote = _follow_quotes(line[end : found.start()], quote)
        pieces.append(line[end : found.start()])
        end = found.end()
        value = None if found["escaped"] is not None else _find_value(found, words, names)
        if value is None:
            pieces.append(found["escaped"] or found[0])
            continue
        text, _ = value
        parts = words.words if found["all"] and words is not None and not quote else [text]
        if all(_PLAIN.fullmatch(part) for part in parts):
            pieces.append(" ".join(parts))
        elif is_nested or "\n" in text:
            return Run(line, f"its argument {text[:80]!r} cannot be passed on safely")
        else:
            pieces.append(_quote(parts, quote))
    pieces.append(line[end:])
    return Run("".join(pieces))


def _follow_quotes(text: str, quote: str) -> str:
    """Return the quote that is open after a text."""
    at = 0
    while at < len(text):
        char = text[at]
        if char == "\\" and quote != "'":
            at += 1
        elif quote:
            quote = "" if char == quote else quote
        elif char in "\"'":
            quote = char
        at += 1
    return quote


def _quote(parts: Sequence[str], quote: str) -> str:
    if not quote:
        return " ".join(map(shlex.quote, parts))
    text = " ".join(parts)
    return text.replace("'", "'\\''") if quote == "'" else re.sub(r'([\\"$`])', r"\\\1", text)
