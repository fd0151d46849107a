"""Find the commands in any bash text, for questions to the user, deny rules and the read-only sandbox.

No command runs outside the sandbox because of this scan (`parse.read_plain_line` decides that), so it may be wrong in
rare cases. It never fails, also for a text that is not shell.
"""

from __future__ import annotations

import re

import msgspec

from kedge.tools.permissions.shell import (
    MAX_CHARS,
    MAX_COMMANDS,
    TOO_COMPLEX,
    UNKNOWN,
    Command,
    Line,
    NotPlain,
    Redirect,
    Word,
    find_problem,
    names,
    read_plain_line,
)

_TOKEN = re.compile(
    r"""(?P<skip>\\\n|\$\(\((?:[^()]|\([^()]{0,99}\)){0,999}+\)\))
    |(?P<single>'[^']*'?|\$'(?:[^'\\]|\\.)*'?)
    |(?P<double>\$?")
    |(?P<open>\$\(|`|<\(|>\()
    |(?P<variable>\$\{[^}$`]{0,999}\}|\$[\w@*\#?$!-])
    |(?P<escape>\\.)
    |(?P<heredoc><<-?[ \t]*(?P<quote>['"]?)(?P<delimiter>\w+)['"]?)
    |(?P<redirect>\d*(?:<<<|<>|<&|>>|>&|>\||<|>)|&>>?)
    |(?P<condition>\[\[\s(?:[^\]'"]|"[^"]{0,999}"|'[^']{0,999}'|\](?!\])){0,999}+\]\])
    |(?P<arithmetic>\(\((?:[^()]|\([^()]{0,99}\)){0,999}+\)\))
    |(?P<group>[()])
    |(?P<end>;|\n|&&|\|\||\||&)
    |(?P<blank>[ \t]+)
    |(?P<char>.)""",
    re.VERBOSE | re.DOTALL,
)
_MAX_DEPTH = 100
_PASSED = names("if then elif else while until do ! { time coproc")
_IGNORED = names("for select case in function fi done esac } [[ ]]")
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*(?:\[[^\]]*\])?\+?=", re.ASCII)


class _Frame(msgspec.Struct):
    """A command being read; nested ones are stacked."""

    words: list[Word] = []
    text: str = ""
    is_word: bool = False
    is_known: bool = True
    is_glob: bool = False
    redirect: str = ""
    in_double: bool = False
    closed_by: str = ""
    is_data: bool = False  # values of an array


class _Scanner:
    def __init__(self, line: Line) -> None:
        self._line = line
        self._stack: list[_Frame] = [_Frame()]
        self._heredocs: list[tuple[str, bool]] = []

    def scan(self, text: str) -> None:
        at = 0
        while at < len(text) and len(self._line.commands) <= MAX_COMMANDS and len(self._stack) <= _MAX_DEPTH:
            found = _TOKEN.match(text, at)
            assert found is not None
            at = self._take(found, text)
        while self._stack:
            self._end_command()
            self._stack.pop()

    def _take(self, found: re.Match[str], text: str) -> int:
        frame, token, kind = self._stack[-1], found[0], found.lastgroup
        kind = "heredoc" if found["heredoc"] else kind
        at = found.end()
        if token == "`" and frame.closed_by == "`":
            self._close()
        elif kind == "open":
            self._mark_unknown(frame)
            self._stack.append(_Frame(closed_by="`" if token == "`" else ")"))
        elif kind == "double" and (not frame.in_double or token == '"'):
            frame.in_double, frame.is_word = not frame.in_double, True
        elif kind in ("variable", "skip"):
            if token != "\\\n":
                self._mark_unknown(frame)
        elif kind == "escape":
            self._add(frame, token[1:] if not frame.in_double or token[1] in '$`"\\' else token)
        elif frame.in_double:
            self._add(frame, token)
        elif kind == "single":
            if token.startswith("$"):
                self._mark_unknown(frame)
            else:
                self._add(frame, token[1:].removesuffix("'"))
        elif kind == "condition" and not frame.is_word:
            self._scan_expansions(token)
        elif kind == "heredoc":
            self._heredocs.append((found["delimiter"], bool(found["quote"])))
        elif kind == "redirect":
            self._end_word()
            frame.redirect = token.lstrip("0123456789")
        elif kind == "group":
            self._take_parenthesis(token)
        elif kind == "end":
            self._end_command()
            at = self._skip_heredocs(text, at) if token == "\n" else at
        elif kind in ("blank", "arithmetic"):
            self._end_word()
        elif token == "#" and not frame.is_word:
            end = text.find("\n", at)
            at = len(text) if end < 0 else end
        else:
            frame.is_glob |= token in "*?["
            self._add(frame, token)
        return at

    def _add(self, frame: _Frame, text: str) -> None:
        frame.text += text
        frame.is_word = True

    def _mark_unknown(self, frame: _Frame) -> None:
        frame.is_word, frame.is_known = True, False

    def _take_parenthesis(self, token: str) -> None:
        frame = self._stack[-1]
        if token == ")":
            if len(self._stack) > 1:
                self._close()
            else:  # the pattern of a case
                self._end_word()
                frame.words = []
        elif frame.is_word and frame.text.endswith("="):
            self._stack.append(_Frame(closed_by=")", is_data=True))
        elif frame.is_word or frame.words:
            self._end_word()
            self._line.functions.update(word.shown for word in frame.words[-1:])
            frame.words = []
            self._stack.append(_Frame(closed_by=")"))
        else:
            self._stack.append(_Frame(closed_by=")"))

    def _close(self) -> None:
        self._end_command()
        if len(self._stack) > 1:
            self._stack.pop()

    def _end_word(self) -> None:
        frame = self._stack[-1]
        if not frame.is_word:
            return
        is_braced = "{" in frame.text and ("," in frame.text or ".." in frame.text)
        assignment = _ASSIGNMENT.match(frame.text)
        word = Word(frame.text, frame.is_glob, is_literal=False) if frame.is_known and not is_braced else UNKNOWN
        if word is UNKNOWN and assignment is not None:
            word = Word(assignment[0] + "…", is_literal=False)
        if frame.redirect and frame.redirect != "<<<":
            if not re.fullmatch(r"\d+-?|-", frame.text) or "&" not in frame.redirect:
                self._line.redirects.append(
                    Redirect("read" if frame.redirect in ("<", "<&") else "write", word, frame.redirect)
                )
        elif not frame.redirect:
            frame.words.append(word)
        frame.text, frame.is_word, frame.is_known, frame.is_glob, frame.redirect = "", False, True, False, ""

    def _end_command(self) -> None:
        self._end_word()
        frame = self._stack[-1]
        words, frame.words, frame.in_double = frame.words, [], False
        while words and words[0].text in _PASSED:
            words = words[1:]
        assigned: list[Word] = []
        while words and not frame.is_data and _ASSIGNMENT.match(words[0].shown):
            assigned.append(words[0])
            words = words[1:]
        if frame.is_data or (words and (words[0].text in _IGNORED or words[-1].text == "]]")):
            if words and words[0].text in ("for", "select") and len(words) > 1:
                self._line.assigned.append(Word(f"{words[1].shown}="))
            if words and words[0].text == "function" and len(words) > 1:
                self._line.functions.add(words[1].shown)
                words = [word for word in words[2:] if word.text != "{"]
                self._line.commands += [Command(tuple(words))] if words else []
            else:
                self._line.others += words
        elif words:
            self._line.commands.append(Command(tuple(words), tuple(assigned)))
        else:
            self._line.assigned += assigned

    def _scan_expansions(self, text: str) -> None:
        """Scan a text in which only substitutions are commands."""
        inner = _Scanner(self._line)
        inner._stack = [_Frame(in_double=True, is_data=True)]
        inner.scan(text.replace('"', " "))

    def _skip_heredocs(self, text: str, at: int) -> int:
        for delimiter, is_literal in self._heredocs:
            end = re.compile(rf"^\t*{delimiter}$", re.MULTILINE).search(text, at)
            body = text[at : len(text) if end is None else end.start()]
            if not is_literal:
                self._scan_expansions(body)
            at = len(text) if end is None else min(end.end() + 1, len(text))
        self._heredocs = []
        return at


def read_line(text: str, home: str | None = None) -> Line:
    """Parse the line exactly if it is plain; otherwise scan it."""
    if (problem := find_problem(text)) is not None:
        return find_commands(text[:MAX_CHARS], problem)
    try:
        return read_plain_line(text, home)
    except NotPlain as error:
        return find_commands(text, error.why)


def find_commands(text: str, not_plain: str = TOO_COMPLEX) -> Line:
    line = Line(not_plain=not_plain)
    _Scanner(line).scan(text)
    return line
