"""Syntax highlighting. Code without a known language, or too large to highlight quickly, is drawn plain."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from rich.segment import Segment

from kedge.tui.chat.lines import Line
from kedge.tui.chat.palette import Palette

if TYPE_CHECKING:
    from pygments.lexer import Lexer

MAX_HIGHLIGHTED_CHARS = 64_000  # takes a tenth of a second
GROWTH_LINES = 3  # growing code is highlighted again after so many new lines


def highlight(code: str, language: str, palette: Palette, *, lead: str = "", is_growing: bool = False) -> list[Line]:
    """Return the segments of each line. `lead` is the code before it: it is parsed, too, but not drawn.

    The last lines of growing code are drawn plain: they would have to be highlighted again with each letter.
    """
    if not language or len(code) + len(lead) > MAX_HIGHLIGHTED_CHARS:
        return _draw_plain(code, palette)
    lexer = find_lexer(language)
    if lexer is None:
        return _draw_plain(code, palette)
    if not is_growing:
        return _draw_tokens(lexer, code, palette, lead)
    lines = code.split("\n")
    known = (len(lines) - 1) // GROWTH_LINES * GROWTH_LINES
    before = _draw_tokens_cached(lexer, "\n".join(lines[:known]), palette, lead) if known else ()
    return [*before, *_draw_plain("\n".join(lines[known:]), palette)]


def highlight_file(code: str, path: str, palette: Palette) -> list[Line]:
    lexer = find_lexer(path=path) if len(code) <= MAX_HIGHLIGHTED_CHARS else None
    return _draw_plain(code, palette) if lexer is None else _draw_tokens(lexer, code, palette)


@lru_cache(128)
def find_lexer(language: str = "", *, path: str = "") -> Lexer | None:
    from pygments import lexers
    from pygments.util import ClassNotFound

    try:
        if path:
            return lexers.get_lexer_for_filename(path.rpartition("/")[2], stripnl=False, ensurenl=False)
        return lexers.get_lexer_by_name(language.lower(), stripnl=False, ensurenl=False)
    except ClassNotFound:
        return None


def _draw_plain(code: str, palette: Palette) -> list[Line]:
    return [[Segment(each, palette.text)] if each else [] for each in code.split("\n")]


@lru_cache(2)
def _draw_tokens_cached(lexer: Lexer, code: str, palette: Palette, lead: str) -> tuple[Line, ...]:
    return tuple(_draw_tokens(lexer, code, palette, lead))


def _draw_tokens(lexer: Lexer, code: str, palette: Palette, lead: str = "") -> list[Line]:
    lines: list[Line] = [[]]
    for kind, value in lexer.get_tokens(lead + code):
        style = palette.syntax(str(kind)[6:])  # without `Token.`
        first, *others = value.split("\n")
        if first:
            lines[-1].append(Segment(first, style))
        lines.extend([Segment(other, style)] if other else [] for other in others)
    before = lead.count("\n")
    count = code.count("\n") + 1
    lines = lines[before : before + count]
    return lines + [[] for _ in range(count - len(lines))]
