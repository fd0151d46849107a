"""What is drawn around a block's own lines: the bar at the left, and the word on what came below."""

from __future__ import annotations

from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip

from kedge.tui.chat.lines import PLAIN, strip_of
from kedge.tui.chat.palette import Palette
from kedge.tui.story.blocks import Block, Prompt

GUTTER = 2  # columns at the left: the bar of prompts, the mark of the block that is selected

_EMPTY = [Segment(" " * GUTTER, PLAIN)]


def gutter(block: Block, palette: Palette, *, is_selected: bool) -> list[Segment]:
    if isinstance(block, Prompt):
        ink = palette.accent if is_selected else palette.bar
        return [Segment("▌", ink + Style(bgcolor=palette.panel.bgcolor)), Segment(" ", palette.panel)]
    return [Segment("▎ ", palette.accent)] if is_selected else _EMPTY


def hint_of(new_lines: int) -> str:
    return f" ↓ {new_lines:,} new line{'s' if new_lines > 1 else ''} · End "


def with_hint(strip: Strip, hint: str, width: int, palette: Palette) -> Strip:
    """At the right end, over what is there."""
    if len(hint) > width:
        return strip
    return strip_of([*strip.crop(0, width - len(hint)), Segment(hint, palette.hint)], width)
