"""Keys in a burst have the effect that they have one by one."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest
from textual import events
from textual.pilot import Pilot
from textual.widgets import Input

from kedge.tui.editor.draft import Draft
from tests.tui import offline_app
from tests.tui.offline_app import OfflineApp

LETTERS = [*"abdnrsvwy", "space"]
EDITING = [
    "enter",
    "enter",
    "backspace",
    "left",
    "right",
    "home",
    "end",
    "ctrl+u",
    "ctrl+k",
    "ctrl+w",
    "ctrl+y",
    "up",
    "down",
]
DIALOGS = ["ctrl+p", "escape", "f1", "escape", "ctrl+c", "tab"]
LIMIT_S = 20.0


def make_keys(rng: random.Random) -> list[str]:
    kinds = rng.choices((LETTERS, EDITING, DIALOGS), (6, 3, 1), k=rng.randrange(2, 40))
    return [rng.choice(kind) for kind in kinds]


def make_event(key: str) -> events.Key:
    character = {"space": " ", "enter": "\r", "tab": "\t"}.get(key, key if len(key) == 1 else None)
    return events.Key(key, character)


async def play(
    keys: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_burst: bool
) -> tuple[object, ...]:
    """Return what the keys led to: what was sent, the prompt, the dialog and the text in its field."""
    sent: list[str] = []
    directory = tmp_path / ("burst" if is_burst else "single")

    def send(draft: Draft, **_: object) -> None:
        sent.append(draft.text)
        app.chat.editor.confirm_sent(draft)

    def quit_(code: int) -> None:
        sent.append(f"(quit {code})")

    async with offline_app.open_app(directory, monkeypatch, (80, 24)) as (app, pilot):
        monkeypatch.setattr(app.chat, "send", send)
        monkeypatch.setattr(app, "exit", quit_)
        _ = app.session
        app.chat.show_state()
        await settle(app, pilot)
        for key in keys:
            app.post_message(make_event(key))
            if not is_burst:
                await settle(app, pilot)
        await settle(app, pilot)
        fields = [field.value for field in app.screen.query(Input)]
        editor = app.chat.editor
        return sent, editor.text, editor.cursor_location, type(app.screen).__name__, fields


async def settle(app: OfflineApp, pilot: Pilot[int]) -> None:
    async with asyncio.timeout(LIMIT_S):
        await pilot.pause()
        while (working := app._keys._working) is not None:
            await asyncio.wait({working})
        await pilot.pause()


@pytest.mark.parametrize("seed", range(12))
async def test_a_burst_does_what_the_keys_do_one_by_one(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = make_keys(random.Random(seed))
    single = await play(keys, tmp_path, monkeypatch, is_burst=False)
    assert await play(keys, tmp_path, monkeypatch, is_burst=True) == single, (seed, keys)


@pytest.mark.parametrize(
    ("keys", "sent", "text", "screen"),
    [
        ([*"one", "enter", *"NEXT"], ["one"], "NEXT", "ChatScreen"),
        ([*"two", "enter", "ctrl+p"], ["two"], "", "Palette"),
        (["ctrl+p", *"zz", "escape", *"after", "enter", *"x"], ["after"], "x", "ChatScreen"),
        ([*"gone", "ctrl+c", *"new"], [], "new", "ChatScreen"),
        ([*"gone", "ctrl+c", "up", "enter"], ["gone"], "", "ChatScreen"),
        ([*"x", "ctrl+d", "backspace", "ctrl+d"], ["(quit 0)"], "", "ChatScreen"),
        ([*"x", "ctrl+c", "ctrl+c"], ["(quit 0)"], "", "ChatScreen"),
    ],
)
async def test_a_burst_with_keys_that_are_bound(
    keys: list[str], sent: list[str], text: str, screen: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = await play(keys, tmp_path, monkeypatch, is_burst=True)
    assert (done[0], done[1], done[3]) == (sent, text, screen)


async def test_letters_of_a_burst_do_not_wait_for_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "to be or not to be " * 20
    async with offline_app.open_app(tmp_path, monkeypatch, (80, 24)) as (app, pilot):
        await settle(app, pilot)
        waits = 0
        wait_for_effect = app._keys._settle

        async def count() -> None:
            nonlocal waits
            waits += 1
            await wait_for_effect()

        monkeypatch.setattr(app._keys, "_settle", count)
        for letter in text:
            app.post_message(make_event("space" if letter == " " else letter))
        app.post_message(make_event("ctrl+p"))
        app.post_message(make_event("z"))
        await settle(app, pilot)
        assert app.chat.editor.text == text
        assert [field.value for field in app.screen.query(Input)] == ["z"]
        assert waits < len(text) / 10


async def test_a_click_waits_for_the_keys_before_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with offline_app.open_app(tmp_path, monkeypatch, (80, 24)) as (app, pilot):
        _ = app.session
        app.chat.show_state()
        await settle(app, pilot)
        place = app.chat.transcript.region
        app.post_message(make_event("ctrl+p"))
        for kind in (events.MouseDown, events.MouseUp):  # on the chat, which the palette covers by then
            app.post_message(kind(None, place.x + 1, place.y + 1, 0, 0, 1, False, False, False))
        app.post_message(make_event("z"))
        await settle(app, pilot)
        assert [field.value for field in app.screen.query(Input)] == ["z"]
        assert app.chat.transcript.selected is None


async def test_typing_in_the_quit_dialog_goes_on_in_the_prompt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with offline_app.open_app(tmp_path, monkeypatch, (80, 24)) as (app, pilot):
        app.session.runs["1"] = offline_app.run("1", "Why?", "running")
        app.chat.show_state()
        await settle(app, pilot)
        for key in ("ctrl+c", *"stay"):
            app.post_message(make_event(key))
        await settle(app, pilot)
        assert (type(app.screen).__name__, app.chat.editor.text) == ("ChatScreen", "stay")
