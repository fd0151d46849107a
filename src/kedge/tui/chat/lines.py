"""Lines of styled text: broken at words to fit a width, and made exactly that wide, counted in cells."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from rich.cells import cell_len, split_graphemes
from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip

Line = list[Segment]

PLAIN = Style.null()  # never None: the filter that takes colours away wants a style in each segment

_WORD = re.compile(r"\S+|\s+")
_CHOPPED = 2000  # cells; a word that is longer is cut in slices first, so that its cost stays linear


def line(*parts: tuple[str, Style]) -> Line:
    return [Segment(text, style) for text, style in parts if text]


def width_of(segments: Iterable[Segment]) -> int:
    return sum(cell_len(segment.text) for segment in segments)


def plain(segments: Iterable[Segment]) -> str:
    return "".join(segment.text for segment in segments)


def wrap(segments: Sequence[Segment], width: int) -> list[Line]:
    """Break at spaces, and inside a word only where it is wider than a line. A line feed in the text breaks too."""
    width = max(1, width)
    text = plain(segments)
    if "\n" not in text and len(text) <= width and cell_len(text) <= width:
        return [list(segments)]
    ends: list[tuple[int, int]] = []
    start = 0
    for hard in text.split("\n"):
        ends += [(start + first, start + last) for first, last in _breaks(hard, width)]
        start += len(hard) + 1
    return _cut(segments, ends)


def chop(segments: Sequence[Segment], width: int) -> list[Line]:
    """Break wherever a line is full: code keeps its spaces."""
    width = max(1, width)
    text = plain(segments)
    if len(text) <= width and cell_len(text) <= width:
        return [list(segments)]
    return _cut(segments, _chopped(text, 0, width))


def truncate(segments: Sequence[Segment], width: int) -> Line:
    """The beginning that fits, with `…` where something was cut."""
    if width_of(segments) <= width:
        return list(segments)
    if width <= 1:
        return [Segment("…", segments[0].style)][:width]
    first = list(_cropped(segments, width - 1))
    return [*first, Segment("…", first[-1].style if first else PLAIN)]


def indented(lines: Iterable[Line], first: Line, rest: Line | None = None) -> list[Line]:
    """Each line behind `first`, those after the first one behind `rest`."""
    rest = first if rest is None else rest
    return [[*(rest if index else first), *each] for index, each in enumerate(lines)]


def blank(width: int) -> Strip:
    return Strip([Segment(" " * width, PLAIN)], width)


def strip_of(segments: Sequence[Segment], width: int, fill: Style = PLAIN) -> Strip:
    """A strip of exactly that width; cells left over are drawn with `fill`."""
    strip = Strip([Segment(text, style or PLAIN) for text, style, _ in segments if text])
    if strip.cell_length > width:
        strip = _cropped(segments, width)
    missing = width - strip.cell_length
    if missing <= 0:
        return strip
    return Strip([*strip, Segment(" " * missing, fill)], width)


def strips_of(lines: Iterable[Sequence[Segment]], width: int, fill: Style = PLAIN) -> list[Strip]:
    return [strip_of(each, width, fill) for each in lines]


def _breaks(text: str, width: int) -> list[tuple[int, int]]:
    """Where each line of one paragraph begins and ends; spaces at a break belong to no line."""
    if len(text) <= width and cell_len(text) <= width:
        return [(0, len(text))]
    lines: list[tuple[int, int]] = []
    start = end = column = 0  # of the line that is being filled
    for match in _WORD.finditer(text):
        word, first, last = match[0], match.start(), match.end()
        if word.isspace():
            if end > start or first == 0:
                column += cell_len(word)
            else:
                start = end = last
            continue
        wide = cell_len(word) if len(word) <= _CHOPPED else _CHOPPED
        if column + wide <= width:
            column += wide
            end = last
            continue
        if end > start:
            lines.append((start, end))
        if wide <= width:
            start, end, column = first, last, wide
        else:
            *full, (start, end) = _chopped(text[first:last], first, width)
            lines += full
            column = cell_len(text[start:end])
    if end > start or not lines:
        lines.append((start, end))
    return lines


def _chopped(text: str, offset: int, width: int) -> list[tuple[int, int]]:
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
    """The segments' characters, by ranges that ascend."""
    lines: list[Line] = []
    index = passed = 0  # the segment that is looked at, and the characters before it
    for start, end in ends:
        current: Line = []
        while index < len(segments) and passed + len(segments[index].text) <= start:
            passed += len(segments[index].text)
            index += 1
        at, before = index, passed
        while at < len(segments) and before < end:
            text, style, _ = segments[at]
            if piece := text[max(0, start - before) : end - before]:
                current.append(Segment(piece, style))
            before += len(text)
            at += 1
        lines.append(current)
    return lines


def _cropped(segments: Sequence[Segment], width: int) -> Strip:
    """What fits. Whole graphemes, but counted by `cell_len`, as Textual does: of broken ones the two say different."""
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
