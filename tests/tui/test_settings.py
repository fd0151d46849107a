"""What is configured, by whom ever, applies at once; what is said to the terminal depends on it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from textual import events

from kedge.client import AsyncClient
from kedge.tui.settings import Launch
from kedge.tui.terminal import Told
from tests.e2e.home import Home, asking
from tests.tui.hands import Hands, kedge
from tests.tui.still import Still


@pytest.fixture
def own(home: Home, monkeypatch: pytest.MonkeyPatch) -> Home:
    """A home whose configuration may be changed."""
    for name, value in home.env.items():
        monkeypatch.setenv(name, value)
    return home


def configure(home: Home, text: str) -> None:
    path = home.config_dir / "kedge" / "config.toml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


async def test_keys_of_the_configuration_are_the_keys_of_the_interface(own: Home, tmp_path: Path) -> None:
    configure(
        own,
        '[tui]\ntheme = "nord"\n[tui.keys]\npalette = "ctrl+l"\nnewline = "ctrl+o"\nmodels = "f9"\nnonsense = "f12"\n',
    )
    server = await asyncio.to_thread(own.serve)
    async with kedge(tmp_path, (100, 110)) as hands:
        await hands.shows("[tui.keys] has no action nonsense", "Ctrl+L  command palette")
        assert hands.app.theme == "nord"
        await hands.press("ctrl+p")
        assert hands.app.screen is hands.app.chat
        await hands.press("ctrl+l")
        await hands.opens("Palette")
        await hands.press("escape")
        await hands.closes()
        await hands.press("a", "ctrl+o", "b")
        assert hands.app.chat.editor.text == "a\nb"
        await hands.press("f1")
        await hands.opens("HelpDialog")
        await hands.shows("Ctrl+L", "Ctrl+O", "F9")
        assert "Ctrl+P " not in hands.text
    assert await asyncio.to_thread(server.stop) == 0


async def test_a_theme_that_is_none_is_told(own: Home, tmp_path: Path) -> None:
    configure(own, '[tui]\ntheme = "norse"\n')
    server = await asyncio.to_thread(own.serve)
    async with kedge(tmp_path) as hands:
        await hands.shows("tui.theme: there is no theme 'norse'; /theme lists what there is")
        assert hands.app.theme == "textual-dark"
    assert await asyncio.to_thread(server.stop) == 0


async def test_what_was_typed_before_the_first_picture_is_in_the_editor_as_text(tmp_path: Path) -> None:
    app = Still(Launch(directory=str(tmp_path), data_dir=str(tmp_path)), Told(None, b"\x1b[Afirst\x07 words"))
    async with app.run_test() as pilot:
        hands = Hands(app, pilot)
        await hands.until(lambda: app.chat.editor.text == "first words", "it is there")


async def test_what_another_client_configures_applies_at_once_and_a_theme_is_stored(own: Home, tmp_path: Path) -> None:
    server = await asyncio.to_thread(own.serve)
    async with kedge(tmp_path) as hands, await AsyncClient.connect(str(tmp_path)) as other:
        assert hands.app.theme == "textual-dark"
        body = {"scope": "global", "key": "tui.theme", "value": "textual-light"}
        await other.call("POST", "/config/set", body, type=dict)
        await hands.until(lambda: hands.app.theme == "textual-light", "the theme of the other")
        await hands.submit("/theme dracula")
        await hands.until(lambda: hands.app.theme == "dracula", "our own")
        await hands.until(
            lambda: 'theme = "dracula"' in (own.config_dir / "kedge" / "config.toml").read_text(), "stored"
        )
        await other.call("POST", "/config/remove", {"scope": "global", "key": "tui.theme"}, type=dict)
        await hands.until(lambda: hands.app.theme == "textual-dark", "the terminal's own again")
    assert await asyncio.to_thread(server.stop) == 0


TERMINALS = {
    "kitty": ({"TERM": "xterm-kitty"}, "\x1b]99;i=kedge:d=0:p=title;"),
    "foot": ({"TERM": "foot"}, "\x1b]777;notify;"),
    "iterm": ({"TERM": "xterm-256color", "TERM_PROGRAM": "iTerm.app"}, "\x1b]9;"),
    "others": ({"TERM": "xterm-256color"}, "\a"),
    "tmux": ({"TERM": "tmux-256color", "TMUX": "/tmp/x", "TERM_PROGRAM": "iTerm.app"}, "\a"),
}


@pytest.mark.parametrize("name", TERMINALS)
async def test_a_run_that_ends_while_nobody_looks_is_told_in_the_terminals_way(
    served: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    env, start = TERMINALS[name]
    for variable in ("TMUX", "TERM_PROGRAM", "KITTY_WINDOW_ID", "VTE_VERSION", "WT_SESSION"):
        monkeypatch.delenv(variable, raising=False)
    for variable, value in env.items():
        monkeypatch.setenv(variable, value)
    async with kedge(tmp_path) as hands:
        await ends(hands, "SEEN")
        assert not any(each.startswith(start) for each in hands.said), "somebody looks"
        await hands.submit(asking(gate=f"blur-{name}", text="UNSEEN"))
        await hands.shows("Working")
        hands.app.post_message(events.AppBlur())
        await hands.pilot.pause()
        served.models.release(f"blur-{name}")
        await hands.until(lambda: any(each.startswith(start) for each in hands.said), f"told: {hands.said}")


ASKING = '[{"name": "bash", "input": {"command": "touch made", "description": "Make it"}}]'
QUESTION = '[{"name": "question", "input": {"questions": [{"question": "Which one?", "kind": "text"}]}}]'


@pytest.mark.parametrize(
    ("plan", "told"),
    [
        ({"tool_calls": ASKING}, ": asks;run touch made"),
        ({"tool_calls": QUESTION}, ": asks;Which one?"),
        ({"status": 400, "error": "bad_request"}, ": failed;"),
    ],
    ids=["leave", "question", "failure"],
)
async def test_a_run_that_asks_or_fails_while_nobody_looks_says_so(
    served: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plan: dict[str, object], told: str
) -> None:
    for variable in ("TMUX", "TERM_PROGRAM", "KITTY_WINDOW_ID", "VTE_VERSION", "WT_SESSION"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("TERM", "foot")
    gate, prompt = f"unseen {told}", f"be unseen {told}"
    served.models.on({"gate": gate, **plan}, {"text": "THE-END"}, prompt=prompt)
    async with kedge(tmp_path) as hands:
        await hands.submit(prompt)
        await hands.shows("Working")
        hands.app.post_message(events.AppBlur())
        await hands.pilot.pause()
        served.models.release(gate)
        await hands.until(
            lambda: any(each.startswith("\x1b]777;notify;") and told in each for each in hands.said), f"told {told}"
        )


async def ends(hands: Hands, text: str) -> None:
    await hands.submit(asking(text=text))
    await hands.shows(text)
    await hands.idle()


async def test_the_title_and_the_task_bar_say_what_goes_on(
    served: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM_PROGRAM", "ghostty")
    monkeypatch.delenv("TMUX", raising=False)
    async with kedge(tmp_path) as hands:
        await hands.submit(asking(gate="titled", text="THE-END"))
        await hands.until(lambda: any("\x1b]2;● " in each and "\x1b]9;4;3;0\a" in each for each in hands.said), "busy")
        served.models.release("titled")
        await hands.until(lambda: hands.said[-1].startswith("\x1b]2;[[fake") and "9;4;0" in hands.said[-1], "idle")


async def test_without_colour_nothing_is_coloured(
    served: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    async with kedge(tmp_path) as hands:
        await ends(hands, "PLAIN")
        seen = {
            (segment.style.color, segment.style.bgcolor)
            for strip in hands.app.screen._compositor.render_strips()
            for segment in strip
            if segment.style is not None
        }
        colours = {colour.get_truecolor() for pair in seen for colour in pair if colour is not None}
        assert all(red == green == blue for red, green, blue in colours), colours
