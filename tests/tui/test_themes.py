"""The interface's own themes, and what is the same in all of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from textual.app import App, ComposeResult
from textual.color import Color
from textual.theme import BUILTIN_THEMES, Theme
from textual.widgets import OptionList

from kedge.tui.chat.palette import MIN_CONTRAST
from kedge.tui.themes import THEMES, unify_variables
from tests.tui import offline_app
from tests.tui.ui_driver import screen_text

NAMES = [*BUILTIN_THEMES, *(theme.name for theme in THEMES)]


def luminance(color: Color) -> float:
    parts = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in color.normalized]
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]


def contrast(one: Color, other: Color) -> float:
    darker, lighter = sorted((luminance(one), luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)


@pytest.mark.parametrize("theme", THEMES, ids=[theme.name for theme in THEMES])
def test_all_texts_of_our_themes_are_readable_also_on_what_is_selected(theme: Theme) -> None:
    variables = unify_variables({**theme.to_color_system().generate(), **theme.variables})
    texts = ["foreground", "foreground-muted", *(name for name in variables if name.startswith("text-"))]
    for ground in ("background", "surface"):
        for name in texts:
            if name not in ("text-disabled",):
                text = Color.parse(variables[name])
                assert contrast(text, Color.parse(variables[ground])) >= MIN_CONTRAST, (name, ground)
    selected = Color.parse(variables["block-cursor-background"])
    assert contrast(Color.parse(variables["foreground"]), selected) >= MIN_CONTRAST
    assert contrast(selected, Color.parse(variables["background"])) > 1.2  # it is seen


class Lists(App[None]):
    def get_css_variables(self) -> dict[str, str]:
        return unify_variables(super().get_css_variables())

    def compose(self) -> ComposeResult:
        yield OptionList("one", "two")
        yield OptionList("three", "four")


@pytest.mark.parametrize("name", NAMES)
async def test_a_list_looks_the_same_with_and_without_the_focus(name: str) -> None:
    app = Lists()
    for theme in THEMES:
        app.register_theme(theme)
    async with app.run_test(size=(40, 20)):
        app.theme = name
        variables = app.get_css_variables()
        for what in ("background", "foreground", "text-style"):
            assert variables[f"block-cursor-{what}"] == variables[f"block-cursor-blurred-{what}"]


@pytest.mark.parametrize("name", NAMES)
async def test_every_theme_draws_the_chat(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with offline_app.open_app(tmp_path, monkeypatch, (120, 40), name) as (app, pilot):
        _ = app.session
        await offline_app.show(app, pilot, None)
        assert "Why does the anchor drag?" in screen_text(app)
