"""A chunk of Markdown as lines for a width. HTML in it is text like any other."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from rich.segment import Segment
from rich.style import Style

from kedge.protocol.text_safety import visible
from kedge.tui.chat.code import coloured
from kedge.tui.chat.inline import inline
from kedge.tui.chat.lines import Line, chop, indented, plain, strip_of, wrap
from kedge.tui.chat.palette import Palette
from kedge.tui.chat.splitting import Chunk, is_definition
from kedge.tui.chat.tables import Row, table

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.token import Token

MAX_DEPTH = 100  # of lists and quotes: there is no room left long before, but nothing is left out

_BULLETS = "•◦▪"
_TASKS = {"[ ] ": "☐ ", "[x] ": "☑ ", "[X] ": "☑ "}


@lru_cache(1)
def _parser() -> MarkdownIt:
    from markdown_it import MarkdownIt

    return MarkdownIt("commonmark", {"html": False, "maxNesting": MAX_DEPTH}).enable(["table", "strikethrough"])


def drawn(chunk: Chunk, width: int, palette: Palette) -> list[Line]:
    """Its lines, the empty one above it too."""
    width = max(1, width)
    if chunk.is_code:
        lead = visible(chunk.lead)
        body = code_block(visible(chunk.text), chunk.language, width, palette, lead=lead, is_growing=chunk.is_growing)
    else:
        text = visible(chunk.text.replace("\r\n", "\n").replace("\r", "\n"))
        source = f"{text}\n\n{visible(chunk.definitions)}" if chunk.definitions else text
        body = _Drawing(source, palette, chunk.ordinal).draw(width)
        if not body and not is_definition(text):
            body = wrap([Segment(text.strip(), palette.text)], width)
    return [[], *body] if chunk.gap else body


def code_block(
    code: str, language: str, width: int, palette: Palette, *, lead: str = "", is_growing: bool = False
) -> list[Line]:
    lines: list[Line] = []
    margin = Segment(" ", palette.block)
    inner = max(1, width - 2)
    for each in coloured(code, language, palette, lead=lead, is_growing=is_growing):
        for part in chop(each, inner):
            on_block = [Segment(text, palette.block + style if style else palette.block) for text, style, _ in part]
            lines.append(list(strip_of([margin, *on_block], width, palette.block)))
    return lines


class _Drawing:
    def __init__(self, source: str, palette: Palette, ordinal: int | None) -> None:
        self._palette = palette
        self._ordinal = ordinal
        self._source = source.split("\n")
        self._tokens = _parser().parse(source)
        self._ends = _ends(self._tokens)

    def draw(self, width: int) -> list[Line]:
        return self._blocks(0, len(self._tokens), width, self._palette.text, is_top=True)

    def _blocks(self, start: int, end: int, width: int, base: Style, *, is_top: bool = False) -> list[Line]:
        lines: list[Line] = []
        at = start
        while at < end:
            token, stop = self._tokens[at], self._ends[at]
            body = self._block(at, stop, max(1, width), base)
            if lines and body and (self._follows_blank(token) or (is_top and token.type in _SET_APART)):
                lines.append([])
            lines += body
            at = stop + 1
        return lines

    def _follows_blank(self, token: Token) -> bool:
        return bool(token.map and token.map[0] > 0 and not self._source[token.map[0] - 1].strip(" >"))

    def _block(self, at: int, stop: int, width: int, base: Style) -> list[Line]:
        token, palette = self._tokens[at], self._palette
        match token.type:
            case "paragraph_open":
                return wrap(inline(self._tokens[at + 1].children or [], base, palette), width)
            case "heading_open":
                line = inline(self._tokens[at + 1].children or [], palette.heading, palette)
                mark = Segment("#" * int(token.tag[1:]) + " ", palette.muted)
                return indented(wrap(line, width - len(mark.text)), [mark], [Segment(" " * len(mark.text))])
            case "fence" | "code_block":
                code = visible(token.content.removesuffix("\n"))
                return code_block(code, token.info.split(" ")[0] if token.info else "", width, palette)
            case "bullet_list_open" | "ordered_list_open":
                return self._list(at, stop, width, base)
            case "blockquote_open":
                inner = self._blocks(at + 1, stop, width - 2, palette.quote)
                return indented(inner, [Segment("▎ ", palette.muted)])
            case "hr":
                return [[Segment("─" * min(width, 40), palette.muted)]]
            case "table_open":
                return self._table(at, stop, width, base)
            case _:
                return wrap([Segment(visible(token.content), base)], width) if token.content else []

    def _list(self, at: int, stop: int, width: int, base: Style) -> list[Line]:
        opening, palette = self._tokens[at], self._palette
        is_ordered = opening.type == "ordered_list_open"
        is_top = opening.level == 0
        number = int(opening.attrGet("start") or 1) if is_ordered else 0
        if is_ordered and is_top and self._ordinal is not None:
            number = self._ordinal
        items: list[int] = []
        inner = at + 1
        while inner < stop:
            items.append(inner)
            inner = self._ends[inner] + 1
        lines: list[Line] = []
        for index, item in enumerate(items):
            if index and self._follows_blank(self._tokens[item]):
                lines.append([])
            mark = f"{number + index}. " if is_ordered else f"{_BULLETS[min(opening.level // 2, 2)]} "
            body = self._blocks(item + 1, self._ends[item], width - len(mark), base) or [[]]
            mark, body = _task(mark, body)
            lines += indented(body, [Segment(mark, palette.secondary)], [Segment(" " * len(mark))])
        return lines

    def _table(self, at: int, stop: int, width: int, base: Style) -> list[Line]:
        rows: list[Row] = []
        aligns: list[str] = []
        for token in self._tokens[at:stop]:
            if token.type == "tr_open":
                rows.append([])
            elif token.type == "th_open":
                aligns.append(str(token.attrGet("style") or "").removeprefix("text-align:"))
            elif token.type == "inline":
                rows[-1].append(inline(token.children or [], base, self._palette))
        return table(rows[0], rows[1:], aligns, width, self._palette) if rows else []


_SET_APART = {"fence", "code_block", "heading_open", "table_open", "hr"}


def _task(mark: str, body: list[Line]) -> tuple[str, list[Line]]:
    """An item of a list of things to do has a box for its bullet."""
    first = body[0]
    box = _TASKS.get(plain(first)[:4]) if first and not mark[0].isdigit() else None
    if box is None or len(first[0].text) < 4:
        return mark, body
    return box, [[Segment(first[0].text[4:], first[0].style), *first[1:]], *body[1:]]


def _ends(tokens: Sequence[Token]) -> list[int]:
    """For each token the index of the one that closes it, or its own."""
    ends = list(range(len(tokens)))
    opened: list[int] = []
    for index, token in enumerate(tokens):
        if token.nesting == 1:
            opened.append(index)
        elif token.nesting == -1 and opened:
            ends[opened.pop()] = index
    return ends
