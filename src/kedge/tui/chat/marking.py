"""Text that the mouse selected, by lines and characters: shown on a strip, and taken from strips."""

from __future__ import annotations

from collections.abc import Callable

from rich.segment import Segment
from rich.style import Style
from textual.selection import Selection
from textual.strip import Strip


def marked(strip: Strip, selection: Selection, y: int, style: Style) -> Strip:
    """The strip with what is selected of its line `y` in the style of selections."""
    span = selection.get_span(y)
    if span is None:
        return strip
    start, end = span
    if end < 0:
        end = len(strip.text.rstrip())
    if end <= start:
        return strip
    segments: list[Segment] = []
    at = 0
    for text, own, _ in strip:
        first, last = max(0, start - at), max(0, min(len(text), end - at))
        if first < last:
            cuts = [(text[:first], own), (text[first:last], (own or Style.null()) + style), (text[last:], own)]
            segments += [Segment(cut, ink) for cut, ink in cuts if cut]
        else:
            segments.append(Segment(text, own))
        at += len(text)
    return Strip(segments, strip.cell_length)


def selected_text(selection: Selection, lines_there: range, line: Callable[[int], str]) -> str:
    """The text as it is seen; `line` gives the text of a line."""
    first = lines_there.start if selection.start is None else max(lines_there.start, selection.start.y)
    stop = lines_there.stop if selection.end is None else min(lines_there.stop, selection.end.y + 1)
    lines: list[str] = []
    for y in range(first, stop):
        start, end = selection.get_span(y) or (0, -1)
        text = line(y)
        lines.append(text[start:].rstrip() if end < 0 else text[start:end].rstrip())
    return "\n".join(lines)
