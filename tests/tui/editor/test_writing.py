"""Typing a prompt: lines, sending, cutting, and that nothing is lost on the way to the server."""

from __future__ import annotations

import pytest
from textual._xterm_parser import XTermParser
from textual.events import Key

from kedge.tui.editor.draft import Chip, Content, Draft
from tests.tui.editor.harness import typing


async def test_enter_sends_and_the_editor_is_free_at_once() -> None:
    async with typing() as hands:
        await hands.type("fix the bug\n")
        assert hands.app.submitted == [Draft("fix the bug")]
        assert hands.text == ""
        assert hands.editor.sending == [Draft("fix the bug")]
        assert "fix the bug" in str(hands.editor.placeholder)
        await hands.type("next")
        hands.editor.accepted(Draft("fix the bug"))
        assert (hands.text, hands.editor.sending) == ("next", [])


async def test_a_refused_prompt_is_back_before_what_was_typed_meanwhile() -> None:
    async with typing() as hands:
        await hands.type("first\n")
        hands.editor.refused(Draft("first"))
        await hands.pilot.pause()
        assert hands.text == "first"
        await hands.press("enter")
        await hands.type("second")
        hands.editor.refused(Draft("first"))
        await hands.pilot.pause()
        assert hands.text == "first\n\nsecond"
        await hands.type("!")
        assert hands.text == "first\n\nsecond!"


async def test_a_refused_command_does_not_mix_with_a_prompt() -> None:
    async with typing() as hands:
        await hands.type("!rm it\n")
        await hands.type("some prompt")
        hands.editor.refused(hands.app.submitted[0])
        await hands.pilot.pause()
        assert hands.text == "some prompt"
        assert "Up brings it back" in hands.app.told[0]
        await hands.press("up")
        assert hands.text == "!rm it"
        await hands.press("down")
        assert hands.text == "some prompt"


@pytest.mark.parametrize("key", ["shift+enter", "alt+enter", "ctrl+j"])
async def test_a_new_line_by_key(key: str) -> None:
    async with typing() as hands:
        await hands.type("one")
        await hands.press(key)
        await hands.type("two")
        assert (hands.text, hands.app.submitted) == ("one\ntwo", [])


@pytest.mark.parametrize("sent", ["\x1b\r", "\n", "\x1b[13;2u", "\x1b[13;3u", "\x1b[27;2;13~"])
async def test_terminals_tell_a_new_line_in_their_own_ways(sent: str) -> None:
    parser = XTermParser()
    async with typing() as hands:
        await hands.type("a")
        for event in (*parser.feed(sent), *parser.feed("")):
            assert isinstance(event, Key)
            await hands.press(event.key)
        assert (hands.text, hands.app.submitted) == ("a\n", [])


async def test_a_backslash_at_the_end_of_a_line_makes_enter_a_new_line() -> None:
    async with typing() as hands:
        await hands.type("one\\\ntwo")
        assert (hands.text, hands.app.submitted) == ("one\ntwo", [])
        await hands.type("\n")
        assert hands.app.submitted == [Draft("one\ntwo")]
        await hands.type("a\\\\\n")
        assert hands.app.submitted[1] == Draft("a\\\\")


@pytest.mark.parametrize("text", ["", "   ", "!", "! "])
async def test_nothing_is_not_sent(text: str) -> None:
    async with typing() as hands:
        await hands.type(text)
        await hands.press("enter")
        assert hands.app.submitted == []
        assert hands.text == text


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
    async with typing() as hands:
        hands.editor.insert_text(text)
        await hands.pilot.pause()
        assert hands.editor.has_class("-shell") == (draft.kind == "shell")
        await hands.press("escape", "enter")
        assert hands.app.submitted == [draft]


async def test_it_grows_with_its_lines_to_a_third_of_the_screen() -> None:
    async with typing(size=(80, 30)) as hands:
        heights: list[int] = []
        for _ in range(14):
            heights.append(hands.editor.size.height)
            await hands.press("ctrl+j")
            await hands.pilot.pause()
        assert heights[:4] == [1, 2, 3, 4]
        assert max(heights) in (9, 10)


async def test_lines_are_cut_and_brought_back_as_in_a_shell() -> None:
    async with typing() as hands:
        await hands.type("one two  three")
        await hands.press("ctrl+w")
        assert hands.text == "one two  "
        await hands.press("ctrl+w", "ctrl+u")
        assert hands.text == ""
        await hands.press("ctrl+y")
        assert hands.text == "one "
        await hands.press("ctrl+a", "ctrl+k")
        assert (hands.text, hands.editor.kills[-1]) == ("", "one ")
        await hands.press("ctrl+y", "ctrl+j", "ctrl+u")
        assert hands.text == "one "
        await hands.press("ctrl+underscore")
        assert hands.text == "one \n"


async def test_escape_does_nothing_to_the_text() -> None:
    async with typing() as hands:
        await hands.type("kept")
        await hands.press("escape", "escape")
        assert (hands.text, hands.app.escapes) == ("kept", 2)


async def test_tab_stays_in_the_editor() -> None:
    async with typing() as hands:
        await hands.type("a")
        await hands.press("tab")
        assert hands.editor.has_focus
        assert hands.text == "a"


async def test_too_large_a_prompt_stays_where_it_is() -> None:
    async with typing() as hands:
        pastes = tuple(Chip(f"[Pasted text #{n}, 1 lines]", "x" * 99_000) for n in range(1, 45))
        content = Content(" ".join(chip.label for chip in pastes), pastes)
        hands.editor.put(content)
        await hands.press("enter")
        await hands.until(lambda: bool(hands.app.told))
        assert hands.app.submitted == []
        assert "over 4 MiB" in hands.app.told[0]
        assert hands.editor.content == content
