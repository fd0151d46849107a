"""Draws a chunk of Markdown as lines of a given width: blocks, inline styles, tables. HTML is drawn as text."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from itertools import zip_longest
from typing import TYPE_CHECKING

from rich.segment import Segment
from rich.style import Style

from kedge.protocol.text_safety import visible, visible_line
from kedge.tui.chat.chunks import Chunk, is_definition
from kedge.tui.chat.code import highlight
from kedge.tui.chat.lines import MAX_PROSE, Line, chop, indent, make_strip, plain, width_of, wrap
from kedge.tui.chat.palette import Palette

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.token import Token


MAX_DEPTH = 100  # of nested lists and quotes; deeper text is still drawn

_BULLETS = "•◦▪"
_TASKS = {"[ ] ": "☐ ", "[x] ": "☑ ", "[X] ": "☑ "}


@lru_cache(1)
def _parser() -> MarkdownIt:
    from markdown_it import MarkdownIt

    return MarkdownIt("commonmark", {"html": False, "maxNesting": MAX_DEPTH}).enable(["table", "strikethrough"])


def draw_chunk(chunk: Chunk, width: int, palette: Palette) -> list[Line]:
    """Draw a chunk, with the empty line above it if it has one."""
    width = max(1, width)
    if chunk.is_code:
        lead = visible(chunk.lead)
        body = draw_code(visible(chunk.text), chunk.language, width, palette, lead=lead, is_growing=chunk.is_growing)
    else:
        text = visible(chunk.text.replace("\r\n", "\n").replace("\r", "\n"))
        source = f"{text}\n\n{visible(chunk.definitions)}" if chunk.definitions else text
        body = _Drawer(source, palette, chunk.ordinal).draw(width)
        if not body and not is_definition(text):
            body = wrap([Segment(text.strip(), palette.text)], min(width, MAX_PROSE))
    return [[], *body] if chunk.gap else body


def draw_code(
    code: str, language: str, width: int, palette: Palette, *, lead: str = "", is_growing: bool = False
) -> list[Line]:
    lines: list[Line] = []
    inner = max(1, width - 2)
    if language.lower() in _DIFFS:
        drawn = [[Segment(each, _style_diff_line(each, palette))] for each in code.split("\n")]
    else:
        drawn = highlight(code, language, palette, lead=lead, is_growing=is_growing)
    for each in drawn:
        for part in chop(each, inner):
            ground = palette.block + (part[0].style or Style.null()) if language.lower() in _DIFFS else palette.block
            on_block = [Segment(text, palette.block + style if style else palette.block) for text, style, _ in part]
            used = min(width, max(MAX_PROSE, width_of(on_block) + 2))
            lines.append(list(make_strip([Segment(" ", ground), *on_block], used, ground)))
    return lines


_DIFFS = ("diff", "patch", "udiff")


def _style_diff_line(line: str, palette: Palette) -> Style:
    if line.startswith(("+++", "---", "diff ", "index ")):
        return palette.muted
    if line.startswith("@@"):
        return palette.secondary
    if line.startswith("+"):
        return palette.success + palette.added
    return palette.error + palette.removed if line.startswith("-") else palette.text


class _Drawer:
    def __init__(self, source: str, palette: Palette, ordinal: int | None) -> None:
        self._palette = palette
        self._ordinal = ordinal
        self._source = source.split("\n")
        self._tokens = _parser().parse(source)
        self._ends = _find_ends(self._tokens)
        self._whole_width = MAX_PROSE  # of which code and tables may take more than sentences

    def draw(self, width: int) -> list[Line]:
        self._whole_width = width
        return self._blocks(0, len(self._tokens), min(width, MAX_PROSE), self._palette.text, is_top=True)

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
                return wrap(draw_inline(self._tokens[at + 1].children or [], base, palette), width)
            case "heading_open":
                line = draw_inline(self._tokens[at + 1].children or [], palette.heading, palette)
                mark = Segment("#" * int(token.tag[1:]) + " ", palette.muted)
                return indent(wrap(line, width - len(mark.text)), [mark], [Segment(" " * len(mark.text))])
            case "fence" | "code_block":
                code = visible(token.content.removesuffix("\n"))
                language = token.info.split(" ")[0] if token.info else ""
                return draw_code(code, language, width if token.level else self._whole_width, palette)
            case "bullet_list_open" | "ordered_list_open":
                return self._list(at, stop, width, base)
            case "blockquote_open":
                inner = self._blocks(at + 1, stop, width - 2, palette.quote)
                return indent(inner, [Segment("▎ ", palette.muted)])
            case "hr":
                return [[Segment("─" * min(width, 40), palette.muted)]]
            case "table_open":
                return self._table(at, stop, width if token.level else self._whole_width, base)
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
            mark, body = _use_task_box(mark, body)
            lines += indent(body, [Segment(mark, palette.secondary)], [Segment(" " * len(mark))])
        return lines

    def _table(self, at: int, stop: int, width: int, base: Style) -> list[Line]:
        rows: list[Cells] = []
        aligns: list[str] = []
        for token in self._tokens[at:stop]:
            if token.type == "tr_open":
                rows.append([])
            elif token.type == "th_open":
                aligns.append(str(token.attrGet("style") or "").removeprefix("text-align:"))
            elif token.type == "inline":
                rows[-1].append(draw_inline(token.children or [], base, self._palette))
        return draw_table(rows[0], rows[1:], aligns, width, self._palette) if rows else []


_SET_APART = {"fence", "code_block", "heading_open", "table_open", "hr"}


def _use_task_box(mark: str, body: list[Line]) -> tuple[str, list[Line]]:
    """Replace the bullet of a task list's item by a box."""
    first = body[0]
    box = _TASKS.get(plain(first)[:4]) if first and not mark[0].isdigit() else None
    if box is None or len(first[0].text) < 4:
        return mark, body
    return box, [[Segment(first[0].text[4:], first[0].style), *first[1:]], *body[1:]]


def _find_ends(tokens: Sequence[Token]) -> list[int]:
    """Return for each token the index of its closing token, or its own index."""
    ends = list(range(len(tokens)))
    opened: list[int] = []
    for index, token in enumerate(tokens):
        if token.nesting == 1:
            opened.append(index)
        elif token.nesting == -1 and opened:
            ends[opened.pop()] = index
    return ends


_BOLD, _ITALIC, _STRUCK = Style(bold=True), Style(italic=True), Style(strike=True)
_OPENS = {"strong_open": _BOLD, "em_open": _ITALIC, "s_open": _STRUCK}
_SAFE_LINK = re.compile(r"(?:https?|mailto|file):[\x21-\x7e]+", re.IGNORECASE)
_MAX_LINK = 2000  # characters of an address


def draw_inline(tokens: Sequence[Token], base: Style, palette: Palette) -> Line:
    styles = [base]
    line: Line = []
    for token in tokens:
        kind = token.type
        if kind in _OPENS:
            styles.append(styles[-1] + _OPENS[kind])
        elif kind == "link_open":
            styles.append(styles[-1] + _style_link(str(token.attrGet("href") or ""), palette))
        elif kind.endswith("_close"):
            if len(styles) > 1:
                styles.pop()
        elif kind == "code_inline":
            line.append(Segment(visible_line(token.content), styles[-1] + palette.code))
        elif kind == "softbreak":
            line.append(Segment(" ", styles[-1]))
        elif kind == "hardbreak":
            line.append(Segment("\n", styles[-1]))
        elif kind == "image":
            line += _draw_image(token, styles[-1], palette)
        elif token.content:
            line.append(Segment(visible_line(token.content), styles[-1]))
    return [segment for segment in line if segment.text]


def _style_link(address: str, palette: Palette) -> Style:
    style = palette.secondary + Style(underline=True)
    return style + Style(link=address) if len(address) <= _MAX_LINK and _SAFE_LINK.fullmatch(address) else style


def _draw_image(token: Token, style: Style, palette: Palette) -> Line:
    address = str(token.attrGet("src") or "")
    name = visible_line(token.content) or visible_line(address)[:80] or "image"
    return [Segment("▣ ", palette.muted), Segment(name, style + _style_link(address, palette))]


Cells = list[Line]
MIN_COLUMN = 6  # cells


def draw_table(head: Cells, rows: Sequence[Cells], aligns: Sequence[str], width: int, palette: Palette) -> list[Line]:
    columns = len(head)
    natural = [max([1, *(width_of(row[i]) for row in [head, *rows] if i < len(row))]) for i in range(columns)]
    widths = _fit_columns(natural, width - 3 * (columns - 1))
    if widths is None:
        return _draw_as_list(head, rows, width, palette)
    bold = [[Segment(text, (style or Style.null()) + _BOLD) for text, style, _ in cell] for cell in head]
    lines = _draw_row(bold, widths, aligns, palette)
    lines.append([Segment("─┼─".join("─" * each for each in widths), palette.muted)])
    for row in rows:
        lines += _draw_row(row, widths, aligns, palette)
    return lines


def _fit_columns(natural: list[int], room: int) -> list[int] | None:
    if sum(natural) <= room:
        return natural
    if room < sum(min(each, MIN_COLUMN) for each in natural):
        return None
    widths = [min(each, MIN_COLUMN) for each in natural]
    spare = room - sum(widths)
    missing = [want - have for want, have in zip(natural, widths, strict=True)]
    total = sum(missing)
    widths = [have + spare * miss // total for have, miss in zip(widths, missing, strict=True)]
    for i in sorted(range(len(widths)), key=lambda i: widths[i] - natural[i])[: room - sum(widths)]:
        widths[i] = min(natural[i], widths[i] + 1)
    return widths


def _draw_row(cells: Cells, widths: list[int], aligns: Sequence[str], palette: Palette) -> list[Line]:
    wrapped = [wrap(cells[i] if i < len(cells) else [], wide) for i, wide in enumerate(widths)]
    lines: list[Line] = []
    for parts in zip_longest(*wrapped, fillvalue=list[Segment]()):
        line: Line = []
        for i, (cell, wide) in enumerate(zip(parts, widths, strict=True)):
            if i:
                line.append(Segment(" │ ", palette.muted))
            left, right = _pad_cell(wide - width_of(cell), aligns[i] if i < len(aligns) else "")
            line += [Segment(" " * left, palette.text), *cell, Segment(" " * right, palette.text)]
        lines.append([segment for segment in line if segment.text])
    return lines


def _pad_cell(spare: int, align: str) -> tuple[int, int]:
    spare = max(0, spare)
    if align == "right":
        return spare, 0
    if align == "center":
        return spare // 2, spare - spare // 2
    return 0, spare


def _draw_as_list(head: Cells, rows: Sequence[Cells], width: int, palette: Palette) -> list[Line]:
    lines: list[Line] = []
    for index, row in enumerate(rows):
        if index:
            lines.append([])
        for name, cell in zip(head, row, strict=False):
            title = [Segment(text, palette.muted + _BOLD) for text, _, _ in name]
            lines += wrap([*title, Segment(": ", palette.muted), *cell], width)
    return lines
