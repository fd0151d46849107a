"""The palette of a widget, made once for each theme and background."""

from __future__ import annotations

from functools import lru_cache
from typing import cast

from textual.app import App
from textual.color import Color
from textual.widget import Widget

from kedge.tui.chat.palette import Palette


def palette_of(widget: Widget) -> Palette:
    """The same one as long as the theme and what is behind the widget are the same."""
    app = cast(App[object], widget.app)
    base, background = widget.background_colors
    return _palette(tuple(app.theme_variables.items()), base + background, app.current_theme.dark)


@lru_cache(8)
def _palette(variables: tuple[tuple[str, str], ...], background: Color, is_dark: bool) -> Palette:
    return Palette(dict(variables), background, is_dark=is_dark)
