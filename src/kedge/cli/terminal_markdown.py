"""Light Markdown for a terminal, as it is streamed: emphasis, code, headings, lists, links.

Text that was returned is final: what may turn out to be a mark, like the beginning of `**bold**`, is held until it is
known, and returned as it is if it is none. Nothing is left out but the marks themselves, and no line is wrapped. The
result does not depend on the pieces in which the text came.
"""

from __future__ import annotations

import re

from kedge.protocol.text_safety import for_terminal

BOLD, DIM, ITALIC, UNDERLINED, STRUCK = "1", "2", "3", "4", "9"
CODE, HEADING, MARK = "36", "1;36", "36"  # cyan: readable on dark and on light backgrounds

MAX_HELD_CHARS = 400  # a mark without its counterpart is text; longer than every span below
RULE = "─" * 40

_FENCE = re.compile(r" *(`{3,}|~{3,})([^`\n]*)$")
_HEADING = re.compile(r" {0,3}#{1,6} +(.*?)(?: +#+)? *$")
_RULE_LINE = re.compile(r" {0,3}([-*_])(?: *\1){2,} *$")
_ITEM = re.compile(r"( *)(?:[-*+]|(\d{1,9}[.)])) +(\[[ xX]\] )?")
_QUOTE = re.compile(r" {0,3}> ?")
_TABLE = re.compile(r" *\|")
# The beginning of a line from which it is not known yet what the line is.
_UNDECIDED = re.compile(r" *(?:#{0,6} *|[-*+_ ]*|(?:[-*+]|\d{1,9}[.)]) +\[?[ xX]?\]?|\d{0,9}[.)]? *|`{0,2}|~{0,2}|>)$")
_WHOLE = re.compile(r" {0,3}#{1,6} | *(?:`{3}|~{3})")  # lines whose look depends on their end

_SPANS = {
    "`": (("code", re.compile(r"(?<!`)(`{1,8})(?!`)(.{1,380}?)(?<!`)\1(?!`)")),),
    "*": (
        (f"{BOLD};{ITALIC}", re.compile(r"(?<![*\\])\*{3}(?=[^\s*])(.{1,380}?)(?<=[^\s*])\*{3}(?!\*)")),
        (BOLD, re.compile(r"(?<![*\\])\*\*(?=[^\s*])(.{1,380}?)(?<=\S)\*\*(?!\*)")),
        (ITALIC, re.compile(r"(?<![\w*\\])\*(?=[^\s*])([^*]{1,380}?)(?<=\S)\*(?![\w*])")),
    ),
    "_": (
        (BOLD, re.compile(r"(?<![\w\\])__(?=[^\s_])(.{1,380}?)(?<=\S)__(?!\w)")),
        (ITALIC, re.compile(r"(?<![\w\\])_(?=[^\s_])([^_]{1,380}?)(?<=\S)_(?!\w)")),
    ),
    "~": ((STRUCK, re.compile(r"(?<![~\\])~~(?=[^\s~])(.{1,380}?)(?<=[^\s~])~~(?!~)")),),
    "[": (("link", re.compile(r"(?<!\\)\[([^\[\]\n]{1,150})\]\(([^\s()]{1,240})\)")),),
}
# Characters that begin a span, where it is certain that none of the patterns will match, whatever follows.
_TEXT = {
    "`": re.compile(r"(?<=`)"),
    "*": re.compile(r"(?<=[*\\])|\*{1,3}\s|\*{4}|(?<=\w)\*[^*]"),
    "_": re.compile(r"(?<=[\w\\])|_{1,2}\s|_{3}"),
    "~": re.compile(r"(?<=[~\\])|~[^~]|~~[\s~]"),
    "[": re.compile(r"(?<=\\)|\[[^\[\]\n]{0,150}(?:\[|\][^(]|\]\([^\s()]{0,240}[\s(])|\[\]"),
}
_FIRST = re.compile(r"[`*_~\[]")


class TerminalMarkdown:
    """Takes the text of an answer in pieces of any size; returns what can be written."""

    def __init__(self) -> None:
        self._unread = ""  # a carriage return, which may belong to a line feed
        self._held = ""  # the part of the current line that was not returned
        self._before = ""  # the last character of it that was
        self._fence = ""  # the mark of the code block that is open
        self._is_line_begun = False  # whether the kind of the current line is known
        self._is_exact = False  # whether it has no marks: a row of a table, whose columns line up
        self._style = ""  # of the current line

    def feed(self, text: str) -> str:
        text = self._unread + text
        self._unread = "\r" if text.endswith("\r") else ""
        self._held += for_terminal(text.removesuffix("\r") if self._unread else text)
        drawn: list[str] = []
        while (end := self._held.find("\n")) >= 0:
            line, self._held = self._held[:end], self._held[end + 1 :]
            drawn.append(f"{self._draw_end(line)}\n")
        drawn.append(self._draw_beginning())
        return "".join(drawn)

    def finish(self) -> str:
        """Return what is held, at the end of a message: the next one begins with nothing open."""
        drawn = self._draw_end(self._held + for_terminal(self._unread))
        self._held = self._unread = self._fence = ""
        return drawn

    def _draw_end(self, line: str) -> str:
        """Draw the rest of a line that is complete."""
        drawn = self._draw_whole(line) if not self._is_line_begun else None
        if drawn is None:
            mark, line = ("", line) if self._is_line_begun else self._begin_line(line)
            drawn = mark + self._draw_text(line, is_complete=True)[0]
        self._is_line_begun = self._is_exact = False
        self._style = self._before = ""
        return drawn

    def _draw_beginning(self) -> str:
        """Draw as much of a line that still grows as is certain."""
        if not self._held:
            return ""
        mark = ""
        if not self._is_line_begun:
            if self._fence:
                if not self._held.lstrip(" ") or self._held.lstrip(" ").startswith(self._fence[0]):
                    return ""  # perhaps the end of the block
            elif _UNDECIDED.match(self._held) or _WHOLE.match(self._held):
                return ""
            mark, self._held = self._begin_line(self._held)
        drawn, self._held = self._draw_text(self._held, is_complete=False)
        return mark + drawn

    def _draw_whole(self, line: str) -> str | None:
        """Draw a line that is a heading, a rule or a fence; None if it is text."""
        fence = _FENCE.match(line)
        if self._fence:
            if fence is None or not fence[1].startswith(self._fence) or fence[2].strip():
                return None
            self._fence = ""
            return paint(line, DIM)
        if fence is not None:
            self._fence = fence[1]
            return paint(line, DIM)
        if heading := _HEADING.match(line):
            return _draw_spans(heading[1], HEADING)[0]
        return paint(RULE, DIM) if _RULE_LINE.match(line) else None

    def _begin_line(self, line: str) -> tuple[str, str]:
        """Draw the mark of a list's item or a quote. Returns it and the rest of the line."""
        self._is_line_begun = True
        if self._fence:
            self._is_exact, self._style = True, CODE
        elif _TABLE.match(line):
            self._is_exact = True
        elif quote := _QUOTE.match(line):
            self._style = DIM
            return paint("▎ ", DIM), line[quote.end() :]
        elif item := _ITEM.match(line):
            box = {"[ ] ": "☐ ", "[x] ": "☑ ", "[X] ": "☑ "}.get(item[3] or "", "")
            mark = f"{item[2]} {box}" if item[2] else box or "• "
            return item[1] + paint(mark, MARK), line[item.end() :]
        return "", line

    def _draw_text(self, text: str, *, is_complete: bool) -> tuple[str, str]:
        """Return the text as far as it is certain, drawn, and the rest."""
        if self._is_exact:
            return paint(text, self._style), ""
        drawn, rest = _draw_spans(text, self._style, self._before, is_complete=is_complete)
        if len(rest) < len(text):
            self._before = text[len(text) - len(rest) - 1]
        return drawn, rest


def _draw_spans(text: str, style: str, before: str = "", *, is_complete: bool = True) -> tuple[str, str]:
    """Draw the spans of a line, as far as they are certain. `before` is the character in front of the text.

    Returns the drawn text and the rest.
    """
    padded = before + text
    drawn: list[str] = []
    at = plain = len(before)
    while (first := _FIRST.search(padded, at)) is not None:
        start = first.start()
        found = ((kind, pattern.match(padded, start)) for kind, pattern in _SPANS[first[0]])
        kind, span = next(((kind, span) for kind, span in found if span is not None), ("", None))
        if span is not None and (is_complete or span.end() < len(padded)):
            drawn.append(paint(padded[plain:start], style))
            drawn.append(_draw_span(kind, span, style))
            at = plain = span.end()
        elif is_complete or _TEXT[first[0]].match(padded, start) or len(padded) - start > MAX_HELD_CHARS:
            at = start + 1
        else:
            drawn.append(paint(padded[plain:start], style))
            return "".join(drawn), padded[start:]
    drawn.append(paint(padded[plain:], style))
    return "".join(drawn), ""


def _draw_span(kind: str, span: re.Match[str], style: str) -> str:
    match kind:
        case "code":
            return paint(span[2], _join(style, CODE))
        case "link":
            return _draw_spans(span[1], _join(style, UNDERLINED))[0] + paint(f" ({span[2]})", _join(style, DIM))
        case _:
            return _draw_spans(span[1], _join(style, kind))[0]


def _join(*styles: str) -> str:
    return ";".join(style for style in styles if style)


def paint(text: str, style: str) -> str:
    """Return the text in a style of a terminal. It ends with the style, so that nothing else is drawn in it."""
    return f"\x1b[{style}m{text}\x1b[0m" if text and style else text
