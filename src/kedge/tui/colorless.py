"""`NO_COLOR`: attributes like bold and reverse stay, and no color is sent.

Textual's own filter turns colors into shades of grey, which are colors, too, and may be unreadable in the terminal's
theme. A selection, which a list shows by its background, is reversed instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from rich.color import Color as RichColor
from rich.segment import Segment
from rich.style import Style
from textual.color import Color
from textual.filter import LineFilter

DIM_CONTRAST = 7.0  # text with less of it was meant to be less visible


def is_colorless(env: Mapping[str, str]) -> bool:
    """As https://no-color.org has it: the variable is set and not empty."""
    return bool(env.get("NO_COLOR"))


class Colorless(LineFilter):
    """`selection` is the background of what is selected."""

    def __init__(self, selection: Color) -> None:
        super().__init__()
        self._selection = selection.rich_color

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        return [
            Segment(text, style and _remove_colors(style, background, self._selection), control)
            for text, style, control in segments
        ]


@lru_cache(4096)
def _remove_colors(style: Style, background: Color, selection: RichColor) -> Style:
    plain = style.without_color + Style.from_meta(style.meta)  # `meta` has the actions of clicks
    if style.bgcolor == selection:
        return plain + Style(reverse=True)
    if style.color is None or style.color.is_default or style.reverse:
        return plain
    is_on_background = style.bgcolor is None or style.bgcolor.is_default
    shown_on = background if is_on_background or style.bgcolor is None else Color.from_rich_color(style.bgcolor)
    is_faint = get_contrast(Color.from_rich_color(style.color), shown_on) < DIM_CONTRAST
    return plain + Style(dim=True) if is_faint else plain


def get_contrast(one: Color, other: Color) -> float:
    """Return the contrast ratio of two colors, from 1 to 21, as WCAG defines it."""
    darker, lighter = sorted(_get_luminance(color) for color in (one, other))
    return (lighter + 0.05) / (darker + 0.05)


def _get_luminance(color: Color) -> float:
    red, green, blue = (
        part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in color.normalized
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
