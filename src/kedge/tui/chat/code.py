"""Code with its colours. What has no language, or is too large to be worth the wait, is shown plainly."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from rich.segment import Segment

from kedge.tui.chat.lines import Line
from kedge.tui.chat.palette import Palette

if TYPE_CHECKING:
    from pygments.lexer import Lexer

MAX_COLOURED_CHARS = 64_000  # a tenth of a second at once
COLOURED_TOGETHER = 3  # lines of code that is growing


def coloured(code: str, language: str, palette: Palette, *, lead: str = "", is_growing: bool = False) -> list[Line]:
    """A line of segments for each line; `lead` is code before it, read for its sake only.

    The last lines of code that is growing have no colours yet: they would be found anew with each letter.
    """
    if not language or len(code) + len(lead) > MAX_COLOURED_CHARS:
        return _plain(code, palette)
    lexer = lexer_named(language)
    if lexer is None:
        return _plain(code, palette)
    if not is_growing:
        return _lexed(lexer, code, palette, lead)
    lines = code.split("\n")
    known = (len(lines) - 1) // COLOURED_TOGETHER * COLOURED_TOGETHER
    before = _lexed_before(lexer, "\n".join(lines[:known]), palette, lead) if known else ()
    return [*before, *_plain("\n".join(lines[known:]), palette)]


def coloured_file(code: str, path: str, palette: Palette) -> list[Line]:
    lexer = lexer_for(path) if len(code) <= MAX_COLOURED_CHARS else None
    return _plain(code, palette) if lexer is None else _lexed(lexer, code, palette)


@lru_cache(64)
def lexer_named(language: str) -> Lexer | None:
    from pygments.lexers import get_lexer_by_name  # pyright: ignore[reportUnknownVariableType]
    from pygments.util import ClassNotFound

    try:
        return get_lexer_by_name(language.lower(), stripnl=False, ensurenl=False)
    except ClassNotFound:
        return None


@lru_cache(64)
def lexer_for(path: str) -> Lexer | None:
    from pygments.lexers import get_lexer_for_filename  # pyright: ignore[reportUnknownVariableType]
    from pygments.util import ClassNotFound

    try:
        return get_lexer_for_filename(path.rpartition("/")[2], stripnl=False, ensurenl=False)
    except ClassNotFound:
        return None


def _plain(code: str, palette: Palette) -> list[Line]:
    return [[Segment(each, palette.text)] if each else [] for each in code.split("\n")]


@lru_cache(2)
def _lexed_before(lexer: Lexer, code: str, palette: Palette, lead: str) -> tuple[Line, ...]:
    return tuple(_lexed(lexer, code, palette, lead))


def _lexed(lexer: Lexer, code: str, palette: Palette, lead: str = "") -> list[Line]:
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
