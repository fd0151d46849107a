"""Typing a prompt: lines, sending, cutting, and that nothing is lost on the way to the server."""

from __future__ import annotations

import pytest
from textual._xterm_parser import XTermParser
from textual.events import Key

from kedge.tui.editor.draft import Chip, Content, Draft
from tests.tui.editor.harness import typing


async def test_enter_sends_and_the_editor_is_free_at_once() -> None:
    async with typing() as ui:
        await ui.type("fix the bug\n")
        assert ui.app.submitted == [Draft("fix the bug")]
        assert ui.text == ""
        assert ui.editor.outbox.drafts == [Draft("fix the bug")]
        assert "fix the bug" in str(ui.editor.placeholder)
        await ui.type("next")
        ui.editor.confirm_sent(Draft("fix the bug"))
        assert (ui.text, ui.editor.outbox.drafts) == ("next", [])


async def test_a_refused_prompt_is_back_before_what_was_typed_meanwhile() -> None:
    async with typing() as ui:
        await ui.type("first\n")
        ui.editor.put_back_unsent(Draft("first"))
        await ui.pilot.pause()
        assert ui.text == "first"
        await ui.press("enter")
        await ui.type("second")
        ui.editor.put_back_unsent(Draft("first"))
        await ui.pilot.pause()
        assert ui.text == "first\n\nsecond"
        await ui.type("!")
        assert ui.text == "first\n\nsecond!"


async def test_a_refused_command_does_not_mix_with_a_prompt() -> None:
    async with typing() as ui:
        await ui.type("!rm it\n")
        await ui.type("some prompt")
        ui.editor.put_back_unsent(ui.app.submitted[0])
        await ui.pilot.pause()
        assert ui.text == "some prompt"
        assert ui.app.told
        await ui.press("up")
        assert ui.text == "!rm it"
        await ui.press("down")
        assert ui.text == "some prompt"


@pytest.mark.parametrize("key", ["shift+enter", "alt+enter", "ctrl+j"])
async def test_a_new_line_by_key(key: str) -> None:
    async with typing() as ui:
        await ui.type("one")
        await ui.press(key)
        await ui.type("two")
        assert (ui.text, ui.app.submitted) == ("one\ntwo", [])


@pytest.mark.parametrize("sent", ["\x1b\r", "\n", "\x1b[13;2u", "\x1b[13;3u", "\x1b[27;2;13~"])
async def test_terminals_tell_a_new_line_in_their_own_ways(sent: str) -> None:
    parser = XTermParser()
    async with typing() as ui:
        await ui.type("a")
        for event in (*parser.feed(sent), *parser.feed("")):
            assert isinstance(event, Key)
            await ui.press(event.key)
        assert (ui.text, ui.app.submitted) == ("a\n", [])


async def test_a_backslash_at_the_end_of_a_line_makes_enter_a_new_line() -> None:
    async with typing() as ui:
        await ui.type("one\\\ntwo")
        assert (ui.text, ui.app.submitted) == ("one\ntwo", [])
        await ui.type("\n")
        assert ui.app.submitted == [Draft("one\ntwo")]
        await ui.type("a\\\\\n")
        assert ui.app.submitted[1] == Draft("a\\\\")


@pytest.mark.parametrize("text", ["", "   ", "!", "! "])
async def test_nothing_is_not_sent(text: str) -> None:
    async with typing() as ui:
        await ui.type(text)
        await ui.press("enter")
        assert ui.app.submitted == []
        assert ui.text == text


@pytest.mark.parametrize(
    ("text", "draft"),
    [
        ("!ls -l", Draft("ls -l", kind="shell")),
        ("/model gpt", Draft("/model gpt", kind="command")),
        ("/etc/hosts is wrong", Draft("/etc/hosts is wrong")),
        ("say !", Draft("say !")),
        ("日本語 é 👩‍💻", Draft("日本語 é 👩‍💻")),
    ],
)
async def test_the_first_characters_say_what_it_is(text: str, draft: Draft) -> None:
    async with typing() as ui:
        ui.editor.insert_text(text)
        await ui.pilot.pause()
        assert ui.editor.has_class("-shell") == (draft.kind == "shell")
        await ui.press("escape", "enter")
        assert ui.app.submitted == [draft]


async def test_it_grows_with_its_lines_to_a_third_of_the_screen() -> None:
    async with typing(size=(80, 30)) as ui:
        heights: list[int] = []
        for _ in range(14):
            heights.append(ui.editor.size.height)
            await ui.press("ctrl+j")
            await ui.pilot.pause()
        assert heights[:4] == [1, 2, 3, 4]
        assert max(heights) in (9, 10)


async def test_lines_are_cut_and_brought_back_as_in_a_shell() -> None:
    async with typing() as ui:
        await ui.type("one two  three")
        await ui.press("ctrl+w")
        assert ui.text == "one two  "
        await ui.press("ctrl+w", "ctrl+u")
        assert ui.text == ""
        await ui.press("ctrl+y")
        assert ui.text == "one "
        await ui.press("ctrl+a", "ctrl+k")
        assert (ui.text, ui.editor.kills[-1]) == ("", "one ")
        await ui.press("ctrl+y", "ctrl+j", "ctrl+u")
        assert ui.text == "one "
        await ui.press("ctrl+underscore")
        assert ui.text == "one \n"


async def test_escape_does_nothing_to_the_text() -> None:
    async with typing() as ui:
        await ui.type("kept")
        await ui.press("escape", "escape")
        assert (ui.text, ui.app.escapes) == ("kept", 2)


async def test_tab_stays_in_the_editor() -> None:
    async with typing() as ui:
        await ui.type("a")
        await ui.press("tab")
        assert ui.editor.has_focus
        assert ui.text == "a"


async def test_too_large_a_prompt_stays_where_it_is() -> None:
    async with typing() as ui:
        pastes = tuple(Chip(f"[Pasted text #{n}, 1 lines]", "x" * 99_000) for n in range(1, 45))
        content = Content(" ".join(chip.label for chip in pastes), pastes)
        ui.editor.set_content(content)
        await ui.press("enter")
        await ui.until(lambda: bool(ui.app.told))
        assert ui.app.submitted == []
        assert "over 4 MiB" in ui.app.told[0]
        assert ui.editor.content == content
