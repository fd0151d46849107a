"""A table in the width there is: columns give way in proportion, and where that is not enough, rows become lists."""

from __future__ import annotations

from collections.abc import Sequence

from rich.segment import Segment
from rich.style import Style

from kedge.tui.chat.lines import Line, width_of, wrap
from kedge.tui.chat.palette import Palette

Row = list[Line]
MIN_COLUMN = 6  # cells; narrower, and words fall into syllables

_BOLD = Style(bold=True)


def table(head: Row, rows: Sequence[Row], aligns: Sequence[str], width: int, palette: Palette) -> list[Line]:
    columns = len(head)
    natural = [max([1, *(width_of(row[i]) for row in [head, *rows] if i < len(row))]) for i in range(columns)]
    widths = _fitted(natural, width - 3 * (columns - 1))
    if widths is None:
        return _listed(head, rows, width, palette)
    bold = [[Segment(text, (style or Style.null()) + _BOLD) for text, style, _ in cell] for cell in head]
    lines = _row(bold, widths, aligns, palette)
    lines.append([Segment("─┼─".join("─" * each for each in widths), palette.muted)])
    for row in rows:
        lines += _row(row, widths, aligns, palette)
    return lines


def _fitted(natural: list[int], room: int) -> list[int] | None:
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


def _row(cells: Row, widths: list[int], aligns: Sequence[str], palette: Palette) -> list[Line]:
    wrapped = [wrap(cells[i] if i < len(cells) else [], wide) for i, wide in enumerate(widths)]
    lines: list[Line] = []
    for at in range(max(len(each) for each in wrapped)):
        line: Line = []
        for i, wide in enumerate(widths):
            if i:
                line.append(Segment(" │ ", palette.muted))
            cell = wrapped[i][at] if at < len(wrapped[i]) else []
            left, right = _padding(wide - width_of(cell), aligns[i] if i < len(aligns) else "")
            line += [Segment(" " * left, palette.text), *cell, Segment(" " * right, palette.text)]
        lines.append([segment for segment in line if segment.text])
    return lines


def _padding(spare: int, align: str) -> tuple[int, int]:
    spare = max(0, spare)
    if align == "right":
        return spare, 0
    if align == "center":
        return spare // 2, spare - spare // 2
    return 0, spare


def _listed(head: Row, rows: Sequence[Row], width: int, palette: Palette) -> list[Line]:
    lines: list[Line] = []
    for index, row in enumerate(rows):
        if index:
            lines.append([])
        for name, cell in zip(head, row, strict=False):
            title = [Segment(text, palette.muted + _BOLD) for text, _, _ in name]
            lines += wrap([*title, Segment(": ", palette.muted), *cell], width)
    return lines
