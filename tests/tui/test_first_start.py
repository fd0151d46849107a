"""Nothing is configured, and still there is a way to an answer."""

from __future__ import annotations

import json
from collections.abc import Generator
from pathlib import Path

import pytest
from textual.widgets import Input, OptionList

from kedge.tui.dialogs import dialog
from tests.e2e.home import Home, new_home
from tests.support.model_control import ModelControl
from tests.tui.ui_driver import kedge

RIGHT, WRONG, NEWER = "right.first.key.0001", "wrong.first.key.0002", "newer.first.key.0003"
KEYS = ("OPENAI_API_KEY", "KEDGE_MODEL")


@pytest.fixture
def home(model_control: ModelControl, monkeypatch: pytest.MonkeyPatch) -> Generator[Home]:
    """No key, and no model; the provider is there, and takes one key."""
    model_control.accept_keys(RIGHT)
    with new_home(model_control, has_titles=False) as home:
        for name, value in home.env.items():
            monkeypatch.setenv(name, value)
        for name in KEYS:
            monkeypatch.delenv(name)
        monkeypatch.setenv("PYTHON_KEYRING_BACKEND", "keyring.backends.fail.Keyring")
        yield home


async def test_a_key_is_entered_checked_and_stored_a_model_chosen_and_there_is_an_answer(
    home: Home, tmp_path: Path
) -> None:
    async with kedge(tmp_path, is_ready=False) as ui:
        await ui.opens("FirstStart")
        options = ui.app.screen.query_one(OptionList)
        options.highlighted = options.get_option_index("key")
        await ui.press("enter")
        await ui.opens("Palette")
        await ui.write("openai")
        await ui.press("enter")
        await ui.opens("KeyDialog")
        await ui.write(WRONG)
        assert WRONG not in ui.text, "it is entered unseen"
        await ui.press("enter")
        await ui.shows("rejected")
        assert not (home.data_dir / "credentials.json").exists()
        ui.app.screen.query_one(Input).value = RIGHT
        await ui.press("enter")
        await ui.opens("ModelDialog")
        stored = json.loads((home.data_dir / "credentials.json").read_text())
        assert stored["providers"]["openai"]["api_key"] == RIGHT
        await ui.write("fake-model")
        await ui.press("enter")
        await ui.closes()
        await ui.until(lambda: ui.app.chat.model == "openai/fake-model", "it is the model now")
        await ui.submit("Hello.")
        await ui.shows("FAKE-ANSWER-OK")
        await ui.idle()


async def test_a_key_that_is_refused_one_day_is_asked_for_and_the_run_goes_on(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dialog, "QUIET_S", 0.0)  # nothing was typed ahead
    async with kedge(tmp_path, is_ready=False, model="openai/fake-model") as ui:
        await ui.opens("FirstStart")
        await ui.app.api.log_in("openai", RIGHT)
        await ui.press("escape")
        await ui.closes()
        home.models.accept_keys(NEWER)
        await ui.submit("Hello.")
        await ui.opens("KeyDialog")
        await ui.shows("OpenAI")
        await ui.write(NEWER)
        await ui.press("enter")
        await ui.closes()
        await ui.shows("FAKE-ANSWER-OK")
        await ui.idle()
        assert ui.app.chat.session is not None
        assert len(ui.app.chat.session.runs) == 1


async def test_who_wants_to_look_around_first_is_told_how_to_go_on(home: Home, tmp_path: Path) -> None:
    async with kedge(tmp_path, is_ready=False) as ui:
        await ui.opens("FirstStart")
        await ui.press("escape")
        await ui.shows("No model yet. Use /login", "no model")


async def test_a_server_is_entered_by_its_address_and_only_kept_if_it_lists_models(home: Home, tmp_path: Path) -> None:
    path = home.config_dir / "kedge" / "config.toml"
    async with kedge(tmp_path, is_ready=False) as ui:
        await ui.opens("FirstStart")
        options = ui.app.screen.query_one(OptionList)
        options.highlighted = options.get_option_index("server")
        await ui.press("enter")
        await ui.opens("ServerDialog")
        url, key = (ui.app.screen.query_one(f"#server-{name}", Input) for name in ("url", "key"))
        url.value = "example.com"
        await ui.press("enter")
        await ui.shows("starts with http")
        url.value, key.value = home.models.base_url, WRONG
        await ui.press("enter")
        await ui.shows("rejected")
        assert not path.exists() or "custom" not in path.read_text()
        key.value = RIGHT
        await ui.press("enter")
        await ui.opens("ModelDialog")
        assert f'base_url = "{home.models.base_url}"' in path.read_text()
        await ui.write("custom/fake-model")
        await ui.press("enter")
        await ui.closes()
        await ui.until(lambda: ui.app.chat.model == "custom/fake-model", "it is the model now")
