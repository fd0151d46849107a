"""Pasting: plain text, long text in a word, files by their names, and images; nothing freezes, nothing breaks apart."""

from __future__ import annotations

import shlex
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kedge.protocol.runs import Attachment
from kedge.protocol.text_safety import pasted_text
from kedge.tui.editor.draft import Draft
from tests.tui.editor.harness import EditorApp, typing

PNG = b"\x89PNG\r\n\x1a\n" + b"picture"
LONG = "\n".join(f"line {n}" for n in range(132))
LABEL = "[Pasted text #1, 132 lines]"


@pytest.mark.parametrize(
    ("pasted", "text"),
    [
        ("one\r\ntwo\rthree", "one\ntwo\nthree"),
        ("a\tb", "a\tb"),
        ("\x1b[31mred\x1b[0m \x1b]0;title\x07x\x1b(B", "red x"),
        ("bell\x07 null\x00 back\x08 c1\x9b31m", "bell null back c1"),
        ("日本\u2028語", "日本\n語"),
        ("half \ud83d", "half ?"),
    ],
)
def test_what_is_no_text_is_removed(pasted: str, text: str) -> None:
    assert pasted_text(pasted) == text


@given(st.text())
def test_what_is_left_has_no_control_characters_and_stays_as_it_is(pasted: str) -> None:
    text = pasted_text(pasted)
    assert all(char in "\t\n" or ord(char) >= 32 for char in text)
    assert "\x1b" not in text
    assert pasted_text(text) == text


async def test_a_short_paste_is_text() -> None:
    async with typing() as ui:
        await ui.type("<>")
        await ui.press("left")
        await ui.paste("a\r\nb")
        assert ui.text == "<a\nb>"
        assert ui.app.submitted == []


async def test_a_long_paste_is_a_word_and_is_sent_whole() -> None:
    async with typing() as ui:
        await ui.type("look at ")
        await ui.paste(LONG)
        await ui.type(" please")
        assert ui.text == f"look at {LABEL} please"
        await ui.press("enter")
        assert ui.app.submitted == [Draft(f"look at {LONG} please")]
        ui.editor.put_back_unsent(ui.app.submitted[0])
        await ui.pilot.pause()
        assert ui.text == f"look at {LABEL} please"
        await ui.press("enter")
        assert ui.app.submitted[1] == ui.app.submitted[0]


async def test_the_word_of_a_paste_is_one_character_to_every_key() -> None:
    async with typing() as ui:
        await ui.type("a")
        await ui.paste(LONG)
        await ui.type("b")
        await ui.press("left", "left")
        assert ui.editor.cursor_location == (0, 1)
        await ui.press("right")
        assert ui.editor.cursor_location == (0, 1 + len(LABEL))
        await ui.press("shift+left")
        assert ui.editor.selected_text == LABEL
        await ui.press("right", "backspace")
        assert ui.text == "ab"
        await ui.press("ctrl+underscore")
        assert ui.text == f"a{LABEL}b"
        await ui.press("home", "right", "delete")
        assert ui.text == "ab"
        await ui.press("ctrl+underscore")
        ui.editor.insert("x", (0, 5))  # also for whoever edits without a key
        assert ui.text == f"a{LABEL}xb"
        ui.editor.delete((0, 0), (0, 4))
        assert ui.text == "xb"


async def test_a_paste_is_shown_in_its_place_by_a_key() -> None:
    async with typing() as ui:
        await ui.paste(LONG)
        await ui.press("f3")
        assert ui.text == LONG
        await ui.press("ctrl+underscore")
        assert ui.text == LABEL
        await ui.press("backspace", "f3")
        await ui.pilot.pause()
        assert ui.app.told


async def test_the_line_break_at_the_end_of_a_paste_is_no_line_of_it() -> None:
    async with typing() as ui:
        await ui.paste(f"{LONG}\n")
        assert ui.text == LABEL


async def test_a_very_long_paste_goes_as_a_file_and_takes_no_time() -> None:
    text = "0123456789abcdef" * 65_536  # a MiB on one line
    async with typing() as ui:
        began = time.process_time()
        await ui.paste(text)
        assert time.process_time() - began < 5
        assert ui.text == "[Pasted text #1, 1,048,576 characters]"
        await ui.press("enter")
        [draft] = ui.app.submitted
        assert draft.text == "[Pasted text #1, 1,048,576 characters]"
        assert draft.attachments == (Attachment("pasted-1.txt", "text/plain", text.encode()),)


async def test_what_is_too_large_is_refused_and_the_rest_stays() -> None:
    async with typing() as ui:
        await ui.type("kept")
        await ui.paste("x" * (4 * 1024 * 1024 + 1))
        await ui.pilot.pause()
        assert ui.text == "kept"
        assert "over 4 MiB" in ui.app.told[0]


@pytest.mark.parametrize("how", ["plain", "quoted", "escaped", "url"])
async def test_a_dropped_image_is_attached(tmp_path: Path, how: str) -> None:
    image = tmp_path / "my shot.png"
    image.write_bytes(PNG)
    pasted = {
        "plain": str(image),
        "quoted": shlex.quote(str(image)),
        "escaped": str(image).replace(" ", "\\ "),
        "url": image.as_uri() + "\n",
    }[how]
    async with typing() as ui:
        await ui.type("see ")
        await ui.paste(pasted)
        assert ui.text == "see [Image #1 my shot.png]"
        await ui.press("enter")
        assert ui.app.submitted == [Draft("see [Image #1 my shot.png]", (Attachment("my shot.png", "image/png", PNG),))]


async def test_several_are_dropped_at_once_and_their_order_stays(tmp_path: Path) -> None:
    names = ["b.png", "a.png"]
    for name in names:
        (tmp_path / name).write_bytes(PNG)
    async with typing() as ui:
        await ui.paste(" ".join(str(tmp_path / name) for name in names))
        assert [each.file_name for each in ui.editor.content.attachments] == names


async def test_a_dropped_file_that_is_no_image_stays_a_name(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("x")
    async with typing() as ui:
        await ui.paste(str(tmp_path / "notes.txt"))
        assert ui.text == str(tmp_path / "notes.txt")


async def test_an_image_that_is_none_is_refused_in_a_line(tmp_path: Path) -> None:
    (tmp_path / "fake.png").write_bytes(b"text")
    async with typing() as ui:
        await ui.paste(str(tmp_path / "fake.png"))
        await ui.pilot.pause()
        assert ui.text == ""
        assert "its content is not image/png" in ui.app.told[0]


async def test_images_that_a_prompt_names_go_with_it(tmp_path: Path) -> None:
    (tmp_path / "shot.png").write_bytes(PNG)
    (tmp_path / "with space.png").write_bytes(PNG)
    (tmp_path / "code.py").write_text("x")
    (tmp_path / "broken.png").write_bytes(b"no")
    prompt = 'compare @shot.png, @"with space.png" and @code.py @broken.png @gone.png a@shot.png'
    async with typing(EditorApp(directory=tmp_path)) as ui:
        ui.editor.insert_text(prompt)
        await ui.press("escape", "enter")
        [draft] = ui.app.submitted
        assert draft.text == prompt
        assert [each.file_name for each in draft.attachments] == ["shot.png", "with space.png"]
    async with typing() as ui:  # the server is elsewhere
        ui.editor.insert_text("@shot.png")
        await ui.press("escape", "enter")
        assert ui.app.submitted == [Draft("@shot.png")]


@pytest.mark.parametrize("has_image", [True, False])
async def test_an_image_in_the_clipboard_is_attached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_image: bool
) -> None:
    (tmp_path / "image").write_bytes(PNG)
    program = tmp_path / "wl-paste"
    program.write_text(f"#!/bin/sh\n{'cat ' + shlex.quote(str(tmp_path / 'image')) if has_image else 'exit 1'}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("WAYLAND_DISPLAY", "wayland-9")
    monkeypatch.delenv("DISPLAY", raising=False)
    async with typing() as ui:
        ui.app.copy_to_clipboard("some text")
        await ui.press("ctrl+v")
        await ui.until(lambda: ui.text != "")
        assert ui.text == ("[Image #1 clipboard.png]" if has_image else "some text")
