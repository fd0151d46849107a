"""The user's own editor: what was saved comes back, and whatever goes wrong, the text is as it was."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import pytest
from textual.drivers.headless_driver import HeadlessDriver

from kedge.tui.editor.external_editor import edit_text, find_editor
from tests.tui.editor.harness import Typist, typing


@pytest.fixture
def lent(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A terminal that can be lent, and was: what happened to it."""
    happened: list[str] = []

    def lend(_: HeadlessDriver) -> None:
        happened.append("lent")

    def take_back(_: HeadlessDriver) -> None:
        happened.append("back")

    monkeypatch.setattr(HeadlessDriver, "can_suspend", True)
    monkeypatch.setattr(HeadlessDriver, "suspend_application_mode", lend)
    monkeypatch.setattr(HeadlessDriver, "resume_application_mode", take_back)
    return happened


def editor(tmp_path: Path, script: str) -> str:
    path = tmp_path / "my editor"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return f"{shlex.quote(str(path))} -x"


async def prompt(ui: Typist) -> None:
    await ui.type("hello ")
    await ui.paste("\n".join(map(str, range(20))))


async def test_what_was_saved_comes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lent: list[str]) -> None:
    script = f'cat "$2" > {tmp_path}/seen; stat -c %a "$(dirname "$2")" > {tmp_path}/mode; echo "from outside\r" > "$2"'
    monkeypatch.setenv("EDITOR", editor(tmp_path, script))
    monkeypatch.delenv("VISUAL", raising=False)
    async with typing() as ui:
        await prompt(ui)
        await ui.press("ctrl+g")
        assert ui.text == "from outside"
        assert (tmp_path / "seen").read_text() == "hello " + "\n".join(map(str, range(20)))
        assert (tmp_path / "mode").read_text() == "700\n"
        assert lent == ["lent", "back"]
        await ui.press("ctrl+underscore")
        assert ui.text == "hello [Pasted text #1, 20 lines]"


async def test_the_keys_of_emacs_lead_there_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lent: list[str]
) -> None:
    monkeypatch.setenv("VISUAL", editor(tmp_path, 'echo visual > "$2"'))
    monkeypatch.setenv("EDITOR", "false")
    async with typing() as ui:
        await ui.press("ctrl+x", "a", "ctrl+e")
        assert lent == []
        await ui.press("ctrl+x", "ctrl+e")
        assert (ui.text, lent) == ("visual", ["lent", "back"])


@pytest.mark.parametrize("script", ['echo lost > "$2"; exit 3', 'rm "$2"', 'printf "\\377" > "$2"'])
async def test_an_editor_that_fails_keeps_the_text_and_it_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lent: list[str], script: str
) -> None:
    monkeypatch.setenv("VISUAL", editor(tmp_path, script))
    async with typing() as ui:
        await prompt(ui)
        before = ui.editor.content
        await ui.press("ctrl+g")
        await ui.until(lambda: bool(ui.app.told))
        assert ui.editor.content == before
        assert "my editor" in ui.app.told[0]
        assert lent == ["lent", "back"]


async def test_a_terminal_that_cannot_be_lent_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VISUAL", "true")
    async with typing() as ui:
        await ui.type("kept")
        await ui.press("ctrl+g")
        await ui.until(lambda: bool(ui.app.told))
        assert ui.text == "kept"


def test_what_is_not_set_or_not_there_falls_back(tmp_path: Path) -> None:
    vi = tmp_path / "vi"
    vi.write_text("#!/bin/sh\n")
    vi.chmod(0o755)
    assert find_editor({"PATH": str(tmp_path)}) == [str(vi)]
    assert find_editor({"PATH": str(tmp_path), "VISUAL": "'", "EDITOR": "code --wait"}) == ["code", "--wait"]
    assert edit_text("text", {"PATH": "/nowhere"}).problem
    assert edit_text("text", {"EDITOR": "/nowhere/ed"}).text == "text"
    assert "/nowhere/ed" in edit_text("text", {"EDITOR": "/nowhere/ed"}).problem


async def test_an_editor_is_not_found_in_the_workspace(
    lent: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in (("workspace", "planted"), ("own", "mine")):
        program = tmp_path / name / "bin/my-editor"
        program.parent.mkdir(parents=True)
        program.write_text(f'#!/bin/sh\necho {text} > "$1"\n')
        program.chmod(0o755)
    monkeypatch.setenv("VISUAL", "my-editor")
    monkeypatch.setenv("PATH", f"{tmp_path}/workspace/bin:{tmp_path}/own/bin:{os.environ['PATH']}")
    async with typing() as ui:
        ui.editor.directory = tmp_path / "workspace"
        await ui.press("ctrl+g")
        await ui.until(lambda: ui.text == "mine")
    assert lent == ["lent", "back"]
