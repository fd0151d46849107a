"""Parse plain bash command lines exactly: simple commands, joined by pipes, lists and simple control flow.

The result decides what may run outside the sandbox, so the parser accepts only what every shell reads the same way.
Words are literal text, quoted or not, with `$NAME` and wildcards at most. Anything else (substitutions, arithmetic,
functions, arrays, brackets, assignments, …) raises `NotPlain`; then `scan.find_commands` looks for the commands, which
is good enough to ask the user and to run the line in a sandbox.
"""

from __future__ import annotations

import os
import re
import unicodedata
from typing import Literal

import msgspec


def names(text: str) -> frozenset[str]:
    """Split a text into a set of names; keeps tables short."""
    return frozenset(text.split())


MAX_CHARS = 128 * 1024
MAX_COMMANDS = 400

_ENDS_WORD = frozenset(" \t\n;&|()<>")
_BARE = re.compile(r"[A-Za-z0-9_@%+=:,./^~#!-]")
_VARIABLE = re.compile(r"\$(?:[A-Za-z_]\w*|\{[A-Za-z_]\w*\}|[0-9?#@*])", re.ASCII)
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*\+?=", re.ASCII)
_QUOTED = {
    "'": re.compile(r"'([^']*)'"),
    # Text, escapes, a dollar that means itself, and plain variables. Possessive, so that no text takes long.
    '"': re.compile(
        r'"((?:[^"\\`$]|\\[^\n]|\$(?=[^A-Za-z_0-9({@*#?$!\'"\[\\-])|\$\?|\$\w++|\$\{[A-Za-z_]\w*+\})*+)"',
        re.DOTALL | re.ASCII,
    ),
}
_LOOP_VARIABLE = re.compile(r"[a-z_][a-z0-9_]{0,7}")  # short: none that programs read, like http_proxy
_OPERATOR = re.compile(r"&&|\|\||;|\||\n")
_REDIRECT = re.compile(r"[0-9]{0,2}(<<<|<<|<&|<(?![(>])|>>|>&|>\||>(?!\())|(&>>|&>)")
_CONTROL = names("if then elif else fi while until do done !")
_REFUSED_NAMES = frozenset({"case", "esac", "select", "function", "coproc", "in"})
_UNUSUAL = names("Cc Cf Zs Zl Zp Cs Co Cn")  # Unicode categories of characters that cannot be seen
TOO_COMPLEX = "the command is more than a list of plain commands"


class NotPlain(Exception):
    """The line cannot be parsed exactly; `why` is for the user."""

    def __init__(self, why: str = TOO_COMPLEX) -> None:
        super().__init__(why)
        self.why = why


class Word(msgspec.Struct, frozen=True):
    """A word as the shell passes it to a command, without quotes."""

    text: str | None  # None: unknown until the command runs
    is_glob: bool = False  # has an unquoted * or ?
    is_one: bool = True  # an unknown text is certainly one word
    is_literal: bool = True  # nothing in it is expanded

    @property
    def shown(self) -> str:
        return "…" if self.text is None else self.text


UNKNOWN = Word(None, is_one=False, is_literal=False)


class Command(msgspec.Struct, frozen=True):
    """A simple command. `assigned`: the NAME=value words before it."""

    words: tuple[Word, ...]
    assigned: tuple[Word, ...] = ()

    @property
    def text(self) -> str:
        return " ".join(word.shown for word in (*self.assigned, *self.words))


class Redirect(msgspec.Struct, frozen=True):
    kind: Literal["read", "write"]
    target: Word
    operator: str

    @property
    def text(self) -> str:
        return f"{self.operator} {self.target.shown}"


class Line(msgspec.Struct):
    """The commands and redirections of a line. `not_plain`: why it was scanned and not parsed exactly, for the user."""

    commands: list[Command] = []
    redirects: list[Redirect] = []
    others: list[Word] = []  # words that belong to no command, like the values of a loop
    has_control_flow: bool = False
    not_plain: str = ""
    # Only set for a line that is not plain:
    assigned: list[Word] = []  # NAME=value without a command
    functions: set[str] = set()

    @property
    def is_list(self) -> bool:
        """Whether it has only pipelines and lists of simple commands."""
        return not self.not_plain and not self.has_control_flow


def find_problem(text: str) -> str | None:
    """Why a text is not parsed at all, for the user: its size, or characters that cannot be seen."""
    if len(text) > MAX_CHARS:
        return f"the command is longer than {MAX_CHARS // 1024} KiB"
    unusual = next((char for char in text if char not in " \t\n" and unicodedata.category(char) in _UNUSUAL), None)
    return None if unusual is None else f"the command contains an unusual character (U+{ord(unusual):04X})"


def read_plain_line(text: str, home: str | None = None) -> Line:
    """Raises NotPlain. `find_problem` must have returned None for the text."""
    return _Reader(text, home).read()


class _Reader:
    def __init__(self, text: str, home: str | None) -> None:
        self._text = text
        self._at = 0
        self._home = home
        self._line = Line()
        self._words: list[Word] = []
        self._assigned: list[Word] = []
        self._heredocs: list[str] = []  # delimiters whose text begins with the next line
        self._parentheses = 0

    def read(self) -> Line:
        while self._skip_blanks():
            if (operator := _OPERATOR.match(self._text, self._at)) is not None:
                self._at = operator.end()
                self._end_command()
                if operator[0] == "\n":
                    self._skip_heredocs()
            elif self._text[self._at] == "#":
                self._at = self._find_line_end()
            elif (redirect := _REDIRECT.match(self._text, self._at)) is not None:
                self._at = redirect.end()
                self._read_redirect(redirect[1] or redirect[2])
            elif self._text[self._at] in "()&":
                self._read_parenthesis(self._text[self._at])
            else:
                self._read_part()
        self._end_command()
        if self._heredocs or self._parentheses:
            raise NotPlain
        return self._line

    def _end_command(self) -> None:
        if self._words:
            self._line.commands.append(Command(tuple(self._words), tuple(self._assigned)))
        elif self._assigned:
            raise NotPlain("the command sets a variable")
        if len(self._line.commands) > MAX_COMMANDS:
            raise NotPlain(f"the command has more than {MAX_COMMANDS} parts")
        self._words, self._assigned = [], []

    def _read_parenthesis(self, char: str) -> None:
        """Read a parenthesis of a subshell, or `&`."""
        self._at += 1
        self._line.has_control_flow = True
        if char == "(" and (self._words or self._assigned or self._text[self._at : self._at + 1] == "("):
            raise NotPlain
        self._end_command()
        self._parentheses += {"(": 1, ")": -1}.get(char, 0)
        if self._parentheses < 0:
            raise NotPlain

    def _read_part(self) -> None:
        start = self._at
        word = self._read_word()
        raw = self._text[start : self._at]
        if not raw or (raw.isdecimal() and self._text[self._at : self._at + 1] in ("<", ">")):
            raise NotPlain  # `<(…)`, `<>`, a number that may name a descriptor
        if self._words:
            if raw in _REFUSED_NAMES and self._is_after_time():
                raise NotPlain
            self._words.append(word)
        elif _ASSIGNMENT.match(raw):
            if not word.is_literal:
                raise NotPlain
            self._assigned.append(word)
        elif raw in _REFUSED_NAMES or (raw in _CONTROL and self._assigned):
            raise NotPlain
        elif raw in _CONTROL:
            self._line.has_control_flow = True
        elif raw == "for":
            self._read_for()
        else:
            self._words.append(word)

    def _is_after_time(self) -> bool:
        """Whether bash reads keywords here, because `time` is one."""
        return all(word.text in ("time", "-p") for word in self._words)

    def _read_for(self) -> None:
        """Read `for name in words`, up to the `;` or the newline before its `do`."""
        self._line.has_control_flow = True
        header = re.compile(r"[ \t]+(\w+)[ \t]+in(?=[ \t])").match(self._text, self._at)
        # Assigning to RANDOM, SECONDS and others would evaluate the value.
        if header is None or not _LOOP_VARIABLE.fullmatch(header[1]):
            raise NotPlain
        self._at = header.end()
        while self._skip_blanks() and self._text[self._at] not in ";\n":
            if self._text[self._at] in _ENDS_WORD or self._text[self._at] == "#":
                raise NotPlain
            self._line.others.append(self._read_word())

    def _read_redirect(self, operator: str) -> None:
        if not self._skip_blanks() or self._text[self._at] in _ENDS_WORD or self._text[self._at] == "#":
            raise NotPlain
        start = self._at
        word = self._read_word()
        raw = self._text[start : self._at]
        if operator == "<<":
            if not re.fullmatch(r"'\w+'|\"\w+\"|\w+", raw, re.ASCII):
                raise NotPlain
            self._heredocs.append(raw)
        elif operator in (">&", "<&") and re.fullmatch(r"\d+-?|-", raw):
            pass
        elif not word.is_literal or (word.text or "").startswith(("/dev/tcp", "/dev/udp")):
            raise NotPlain
        elif operator != "<<<":
            self._line.redirects.append(Redirect("read" if operator in ("<", "<&") else "write", word, operator))

    def _skip_heredocs(self) -> None:
        """Skip the text of here-documents; raise NotPlain if something in it would be expanded."""
        for delimiter in self._heredocs:
            end = re.compile(rf"^{delimiter.strip(chr(39) + chr(34))}$", re.MULTILINE).search(self._text, self._at)
            if end is None:
                raise NotPlain
            if delimiter[0] not in "'\"" and re.search(r"[$`\\]", self._text[self._at : end.start()]):
                raise NotPlain
            self._at = min(end.end() + 1, len(self._text))
        self._heredocs = []

    # Words

    def _read_word(self) -> Word:
        start = self._at
        text, is_known, is_one, is_glob, is_literal = "", True, True, False, True
        while self._at < len(self._text) and (char := self._text[self._at]) not in _ENDS_WORD:
            if char in "'\"":
                quoted, is_variable = self._read_quoted(char)
                text += quoted
                is_known, is_literal = is_known and not is_variable, is_literal and not is_variable
                continue
            if char == "\\":
                following = self._text[self._at + 1 : self._at + 2]
                if following in ("", "\n"):
                    raise NotPlain
                text += following
                self._at += 2
                continue
            if char == "$":
                variable = self._match_variable()
                self._at = variable.end()
                if variable[0] == "$?":
                    text += "0"  # some number
                else:
                    is_known, is_one, is_literal = False, False, False
                continue
            if char in "*?":
                is_glob, is_literal = True, False
            elif self._text.startswith("{}", self._at):
                text += char
                self._at += 1
                char = "}"
            elif not _BARE.match(char) and not char.isalpha():
                raise NotPlain
            elif char == "~" and (self._at == start or self._text[self._at - 1] in "=:"):
                is_literal = False
            elif char == "!" and self._at == start and self._text[start + 1 : start + 2] not in (" ", "="):
                raise NotPlain
            text += char
            self._at += 1
        if self._text.startswith("~", start) and is_known:
            return self._expand_home(text)
        return Word(text if is_known else None, is_glob=is_glob, is_one=is_one, is_literal=is_literal)

    def _read_quoted(self, quote: str) -> tuple[str, bool]:
        """The text between quotes, and whether a variable is in it."""
        found = _QUOTED[quote].match(self._text, self._at)
        if found is None or ("\n" in found[0] and self._heredocs):
            raise NotPlain
        self._at = found.end()
        if quote == "'":
            return found[1], False
        has_variable = re.search(r"(?<!\\)(?:\\\\)*\$[\w{]", found[1], re.ASCII) is not None
        return re.sub(r"\\([$`\"\\])|\$\?", lambda each: each[1] or "0", found[1]), has_variable

    def _match_variable(self) -> re.Match[str]:
        found = _VARIABLE.match(self._text, self._at)
        if found is None:
            raise NotPlain
        return found

    def _expand_home(self, text: str) -> Word:
        if self._home is None or not (text == "~" or text.startswith("~/")):
            return Word(None, is_literal=False)
        return Word(os.path.normpath(self._home) + text[1:], is_literal=False)

    # Positions in the text

    def _skip_blanks(self) -> bool:
        """Skip blanks and continued lines; return whether any text is left."""
        while self._at < len(self._text):
            if self._text[self._at] in " \t":
                self._at += 1
            elif self._text.startswith("\\\n", self._at) and not self._heredocs:
                if self._at and self._text[self._at - 1] not in " \t\n":
                    raise NotPlain
                self._at += 2
            else:
                return True
        return False

    def _find_line_end(self) -> int:
        end = self._text.find("\n", self._at)
        return len(self._text) if end < 0 else end
