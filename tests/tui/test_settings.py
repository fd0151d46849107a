"""What is configured, by whom ever, applies at once; what is said to the terminal depends on it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from textual import events

from kedge.client import AsyncClient
from kedge.tui.settings import Launch
from kedge.tui.terminal import TerminalInfo
from tests.e2e.home import Home, asking
from tests.tui.offline_app import OfflineApp
from tests.tui.ui_driver import UiDriver, kedge


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
        '[tui]\ntheme = "nord"\n[tui.keys]\npalette = "ctrl+l"\nnewline = "ctrl+o"\n'
        'models = "f9"\nsteer = "f10"\nnonsense = "f12"\n',
    )
    server = await asyncio.to_thread(own.serve)
    async with kedge(tmp_path, (100, 110)) as ui:
        await ui.shows("nonsense", "Ctrl+L  Command palette")
        assert ui.app.theme == "nord"
        await ui.press("ctrl+p")
        assert ui.app.screen is ui.app.chat
        await ui.press("ctrl+l")
        await ui.opens("Palette")
        await ui.press("escape")
        await ui.closes()
        await ui.press("a", "ctrl+o", "b")
        assert ui.app.chat.editor.text == "a\nb"
        await ui.press("f1")
        await ui.shows("F10")
        await ui.opens("HelpDialog")
        await ui.shows("Ctrl+L", "Ctrl+O", "F9")
        assert "Ctrl+P " not in ui.text
    assert await asyncio.to_thread(server.stop) == 0


async def test_a_theme_that_is_none_is_told(own: Home, tmp_path: Path) -> None:
    configure(own, '[tui]\ntheme = "norse"\n')
    server = await asyncio.to_thread(own.serve)
    async with kedge(tmp_path) as ui:
        await ui.shows("Unknown theme 'norse'")
        assert ui.app.theme == "kedge-dark"
    assert await asyncio.to_thread(server.stop) == 0


async def test_what_was_typed_before_the_first_picture_is_in_the_editor_as_text(tmp_path: Path) -> None:
    app = OfflineApp(
        Launch(directory=str(tmp_path), data_dir=str(tmp_path)), TerminalInfo(None, b"\x1b[Afirst\x07 words")
    )
    async with app.run_test() as pilot:
        ui = UiDriver(app, pilot)
        await ui.until(lambda: app.chat.editor.text == "first words", "it is there")


async def test_what_another_client_configures_applies_at_once_and_a_theme_is_stored(own: Home, tmp_path: Path) -> None:
    server = await asyncio.to_thread(own.serve)
    async with kedge(tmp_path) as ui, await AsyncClient.connect(str(tmp_path)) as other:
        assert ui.app.theme == "kedge-dark"
        body = {"scope": "global", "key": "tui.theme", "value": "kedge-light"}
        await other.call("POST", "/config/set", body, type=dict)
        await ui.until(lambda: ui.app.theme == "kedge-light", "the theme of the other")
        await ui.submit("/theme dracula")
        await ui.until(lambda: ui.app.theme == "dracula", "our own")
        await ui.until(lambda: 'theme = "dracula"' in (own.config_dir / "kedge" / "config.toml").read_text(), "stored")
        await other.call("POST", "/config/remove", {"scope": "global", "key": "tui.theme"}, type=dict)
        await ui.until(lambda: ui.app.theme == "kedge-dark", "the terminal's own again")
    assert await asyncio.to_thread(server.stop) == 0


async def test_the_list_of_themes_shows_each_at_once_marks_the_current_one_and_leads_back_to_auto(
    own: Home, tmp_path: Path
) -> None:
    configure(own, '[tui]\ntheme = "dracula"\n')
    server = await asyncio.to_thread(own.serve)
    async with kedge(tmp_path) as ui:
        await ui.until(lambda: ui.app.theme == "dracula", "as configured")
        await ui.submit("/theme")
        await ui.opens("ThemeDialog")
        await ui.shows("▸ dracula")
        await ui.press("down")
        await ui.until(lambda: ui.app.theme not in ("dracula", "kedge-dark"), "the next one")
        await ui.press("escape")
        await ui.closes()
        assert ui.app.theme == "dracula"
        await ui.submit("/theme")
        await ui.opens("ThemeDialog")
        await ui.press(*"auto", "enter")
        await ui.closes()
        await ui.until(lambda: ui.app.theme == "kedge-dark", "the one for this terminal")
        await ui.until(lambda: 'theme = "auto"' in (own.config_dir / "kedge" / "config.toml").read_text(), "stored")
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
    async with kedge(tmp_path) as ui:
        await ends(ui, "SEEN")
        assert not any(each.startswith(start) for each in ui.said), "somebody looks"
        await ui.submit(asking(gate=f"blur-{name}", text="UNSEEN"))
        await ui.shows("Working")
        ui.app.post_message(events.AppBlur())
        await ui.pilot.pause()
        served.models.release(f"blur-{name}")
        await ui.until(lambda: any(each.startswith(start) for each in ui.said), f"told: {ui.said}")


ASKING = '[{"name": "bash", "input": {"command": "touch made", "description": "Make it"}}]'
QUESTION = '[{"name": "question", "input": {"questions": [{"question": "Which one?", "kind": "text"}]}}]'


@pytest.mark.parametrize(
    ("plan", "told"),
    [
        ({"tool_calls": ASKING}, ": needs you;run touch made"),
        ({"tool_calls": QUESTION}, ": needs you;Which one?"),
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
    async with kedge(tmp_path) as ui:
        await ui.submit(prompt)
        await ui.shows("Working")
        ui.app.post_message(events.AppBlur())
        await ui.pilot.pause()
        served.models.release(gate)
        await ui.until(
            lambda: any(each.startswith("\x1b]777;notify;") and told in each for each in ui.said), f"told {told}"
        )


async def ends(ui: UiDriver, text: str) -> None:
    await ui.submit(asking(text=text))
    await ui.shows(text)
    await ui.idle()


async def test_the_title_and_the_task_bar_say_what_goes_on(
    served: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM_PROGRAM", "ghostty")
    monkeypatch.delenv("TMUX", raising=False)
    async with kedge(tmp_path) as ui:
        await ui.submit(asking(gate="titled", text="THE-END"))
        await ui.until(lambda: any("\x1b]2;● " in each and "\x1b]9;4;3;0\a" in each for each in ui.said), "busy")
        served.models.release("titled")
        await ui.until(lambda: ui.said[-1].startswith("\x1b]2;[[fake") and "9;4;0" in ui.said[-1], "idle")


async def test_without_colour_nothing_is_coloured(
    served: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    async with kedge(tmp_path) as ui:
        await ends(ui, "PLAIN")
        await ui.press("ctrl+p")
        await ui.opens("Palette")
        segments = [
            (segment.text, segment.style)
            for strip in ui.app.screen._compositor.render_strips()
            for segment in strip
            if segment.style is not None
        ]
        assert {(style.color, style.bgcolor) for _, style in segments} == {(None, None)}
        assert any("help" in text and style.reverse for text, style in segments), "what is selected can be seen"
