"""Dialogs show text of files, providers and models: none of it moves the cursor or crashes the app."""

from __future__ import annotations

from pathlib import Path

import pytest
from textual.app import App
from textual.widgets import OptionList

import kedge.tui
from kedge.protocol.api import Offered, OfferedModel, OfferedProvider
from kedge.tui.dialogs.dialog import ConfirmDialog, Palette
from kedge.tui.dialogs.models import ModelDialog
from tests.tui.ui_driver import screen_text

STYLES = Path(kedge.tui.__file__).with_name("kedge.tcss")
ODD = "a\x1b[31mb\x1b]2;title\x07\x9bc[bold]d"


async def test_a_model_that_its_server_lists_twice_is_offered_once() -> None:
    model = OfferedModel(
        name="local/one",
        context_window=None,
        max_output_tokens=None,
        input_price=None,
        output_price=None,
        cache_read_price=None,
        cache_write_price=None,
        images=False,
        tools=True,
        reasoning=False,
        efforts=[],
        source="server",
        roles=[],
    )
    provider = OfferedProvider(id="local", title=ODD, usable=True, why="", models=[model, model])
    offered = Offered(model=None, small_model=None, why="", catalog_date="", providers=[provider])
    app: App[None] = App()
    async with app.run_test() as pilot:
        app.push_screen(ModelDialog(offered, ""))
        await pilot.pause()
        assert app.screen.query_one(OptionList).option_count == 1


async def test_titles_and_names_from_elsewhere_are_words_only() -> None:
    app: App[None] = App()
    async with app.run_test() as pilot:
        for dialog in (Palette([(ODD, ODD, "")], ODD), ConfirmDialog("?", [("no", "No")], title=ODD)):
            app.push_screen(dialog)
            await pilot.pause()
            text = screen_text(app)
            assert "[bold]d" in text
            assert "\x1b" not in text
            assert "\x9b" not in text


class Styled(App[None]):
    CSS_PATH = STYLES


@pytest.mark.parametrize("lines", [24, 40])
async def test_a_long_list_leaves_no_blank_lines_at_the_end_of_its_box(lines: int) -> None:
    app = Styled()
    async with app.run_test(size=(120, lines)) as pilot:
        app.push_screen(Palette([(f"name-{number}", "about", "") for number in range(60)]))
        await pilot.pause()
        box, footer = app.screen.query_one(".dialog"), app.screen.query_one(".dialog-footer")
        assert app.screen.query_one(OptionList).size.height == lines // 2
        assert footer.region.bottom == box.region.bottom - 1
