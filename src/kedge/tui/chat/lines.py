"""Lines of styled text: wrapped at words to fit a width, and padded to exactly that width, in terminal cells."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from rich.cells import cell_len, split_graphemes
from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip

Line = list[Segment]

PLAIN = Style.null()  # never None: Textual's filter for NO_COLOR needs a style in each segment

MAX_PROSE = 110  # columns of text in sentences: longer lines are hard to read

_WORD = re.compile(r"\S+|\s+")
_MAX_WORD = 2000  # cells; a longer word is cut in slices first, so that the time stays linear


def line(*parts: tuple[str, Style]) -> Line:
    return [Segment(text, style) for text, style in parts if text]


def width_of(segments: Iterable[Segment]) -> int:
    return sum(cell_len(segment.text) for segment in segments)


def plain(segments: Iterable[Segment]) -> str:
    return "".join(segment.text for segment in segments)


def wrap(segments: Sequence[Segment], width: int) -> list[Line]:
    """Break at spaces, inside a word only if it is wider than a line, and at line feeds."""
    width = max(1, width)
    text = plain(segments)
    if "\n" not in text and len(text) <= width and cell_len(text) <= width:
        return [list(segments)]
    ends: list[tuple[int, int]] = []
    start = 0
    for hard in text.split("\n"):
        ends += [(start + first, start + last) for first, last in _find_breaks(hard, width)]
        start += len(hard) + 1
    return _cut(segments, ends)


def chop(segments: Sequence[Segment], width: int) -> list[Line]:
    """Break where a line is full, and keep all spaces: for code."""
    width = max(1, width)
    text = plain(segments)
    if len(text) <= width and cell_len(text) <= width:
        return [list(segments)]
    return _cut(segments, _find_chops(text, 0, width))


def truncate(segments: Sequence[Segment], width: int) -> Line:
    """Return the beginning that fits, with `…` if something was cut."""
    if width_of(segments) <= width:
        return list(segments)
    if width <= 1:
        return [Segment("…", segments[0].style)][:width]
    first = list(_crop(segments, width - 1))
    return [*first, Segment("…", first[-1].style if first else PLAIN)]


def indent(lines: Iterable[Line], first: Line, rest: Line | None = None) -> list[Line]:
    """Put `first` before the first line, and `rest` (or `first`) before the others."""
    rest = first if rest is None else rest
    return [[*(rest if index else first), *each] for index, each in enumerate(lines)]


def blank(width: int) -> Strip:
    return Strip([Segment(" " * width, PLAIN)], width)


def make_strip(segments: Sequence[Segment], width: int, fill: Style = PLAIN) -> Strip:
    """Return a strip of exactly that width, padded with `fill`."""
    strip = Strip([Segment(text, style or PLAIN) for text, style, _ in segments if text])
    if strip.cell_length > width:
        strip = _crop(segments, width)
    missing = width - strip.cell_length
    if missing <= 0:
        return strip
    return Strip([*strip, Segment(" " * missing, fill)], width)


def make_strips(lines: Iterable[Sequence[Segment]], width: int) -> list[Strip]:
    return [make_strip(each, width) for each in lines]


def _find_breaks(text: str, width: int) -> list[tuple[int, int]]:
    """Return the start and end of each line of a paragraph. Spaces at a break belong to no line."""
    if len(text) <= width and cell_len(text) <= width:
        return [(0, len(text))]
    lines: list[tuple[int, int]] = []
    start = end = column = 0  # of the current line
    for match in _WORD.finditer(text):
        word, first, last = match[0], match.start(), match.end()
        if word.isspace():
            if end > start or first == 0:
                column += cell_len(word)
            else:
                start = end = last
            continue
        wide = cell_len(word) if len(word) <= _MAX_WORD else _MAX_WORD
        if column + wide <= width:
            column += wide
            end = last
            continue
        if end > start:
            lines.append((start, end))
        if wide <= width:
            start, end, column = first, last, wide
        else:
            *full, (start, end) = _find_chops(text[first:last], first, width)
            lines += full
            column = cell_len(text[start:end])
    if end > start or not lines:
        lines.append((start, end))
    return lines


def _find_chops(text: str, offset: int, width: int) -> list[tuple[int, int]]:
    if text.isascii():
        return [(offset + i, offset + min(i + width, len(text))) for i in range(0, len(text), width)] or [
            (offset, offset)
        ]
    lines: list[tuple[int, int]] = []
    spans, _ = split_graphemes(text)
    start = column = 0
    for first, _, wide in spans:
        if column + wide > width and first > start:
            lines.append((offset + start, offset + first))
            start, column = first, 0
        column += wide
    lines.append((offset + start, offset + len(text)))
    return lines


def _cut(segments: Sequence[Segment], ends: Sequence[tuple[int, int]]) -> list[Line]:
    """Cut the segments into the given ranges of characters, which ascend."""
    lines: list[Line] = []
    index = chars_above = 0  # the current segment, and the number of characters before it
    for start, end in ends:
        current: Line = []
        while index < len(segments) and chars_above + len(segments[index].text) <= start:
            chars_above += len(segments[index].text)
            index += 1
        at, before = index, chars_above
        while at < len(segments) and before < end:
            text, style, _ = segments[at]
            if piece := text[max(0, start - before) : end - before]:
                current.append(Segment(piece, style))
            before += len(text)
            at += 1
        lines.append(current)
    return lines


def _crop(segments: Sequence[Segment], width: int) -> Strip:
    """Return the part that fits, in whole graphemes. Widths are by `cell_len`, as Textual counts them."""
    kept: Line = []
    room = width
    for text, style, _ in segments:
        if (wide := cell_len(text)) > room:
            ends = [0]
            column = 0
            for _, end, cells in split_graphemes(text)[0]:
                column += cells
                if column > room:
                    break
                ends.append(end)
            while cell_len(text[: ends[-1]]) > room:
                ends.pop()
            text = text[: ends[-1]]
        if text:
            kept.append(Segment(text, style or PLAIN))
        if wide > room:
            break
        room -= wide
    return Strip(kept)
