"""The list of themes. The highlighted one is shown at once, and stored when it is chosen."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from textual import on
from textual.content import Content
from textual.theme import Theme
from textual.widgets import OptionList
from textual.widgets.option_list import Option

from kedge.tui.dialogs.dialog import FilterDialog
from kedge.tui.formats import pad
from kedge.tui.themes import AUTO, THEMES


class ThemeDialog(FilterDialog[str]):
    FOOTER = "Type to filter · ↑↓ preview · Enter select · Esc close"

    def __init__(self, themes: Mapping[str, Theme], current: str, show: Callable[[str], None]) -> None:
        """`show` shows a theme by its name."""
        super().__init__("Theme")
        self._themes = themes
        self._current = current
        self._show_theme = show
        self._names = _sort_names(themes)

    def find_options(self, typed: str) -> tuple[list[Option], int]:
        found = [name for name in self._names if typed.strip().casefold() in name]
        width = max(map(len, self._names))
        at = found.index(self._current) if self._current in found and not typed.strip() else 0
        return [Option(self._draw(name, width), id=name) for name in found], at

    def make_result(self, option_id: str) -> str:
        return option_id

    def _draw(self, name: str, width: int) -> Content:
        mark = "▸" if name == self._current else " "
        about = "follows the terminal's background" if name == AUTO else self._describe(name)
        return Content.assemble((f"{mark} {pad(name, width)}", "bold"), ("  " + about, "$foreground-muted"))

    def _describe(self, name: str) -> str:
        return "dark" if self._themes[name].dark else "light"

    @on(OptionList.OptionHighlighted)
    def _preview(self, event: OptionList.OptionHighlighted) -> None:
        if event.option_id:
            self._show_theme(event.option_id)


def _sort_names(names: Iterable[str]) -> list[str]:
    """Return `auto`, our own themes, and then all others."""
    own = [theme.name for theme in THEMES]
    return [AUTO, *own, *sorted(set(names) - set(own))]
