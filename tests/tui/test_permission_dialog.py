"""The permission dialog shows exactly what will happen: nothing is removed, reordered or pushed out of sight."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
from textual.app import App
from textual.pilot import Pilot

from kedge.files.diffs import diff
from kedge.protocol.requests import PermissionRequest
from kedge.tui import app as app_module
from kedge.tui.dialogs import docked
from kedge.tui.dialogs.permission import DESCRIPTION_LABEL, OMISSION_LABEL, REASON_LABEL, PermissionDialog
from tests.e2e.home import Home
from tests.tui.test_terminal import EDITOR, MODEL, allow, kedge, submit
from tests.tui.ui_driver import screen_text

SMALL = (80, 24)


class Bare(App[None]):
    """Our looks and nothing else."""

    CSS_PATH = Path(app_module.__file__).with_name("kedge.tcss")

    def __init__(self) -> None:
        super().__init__()
        self.answers: list[object] = []
        self.typed: list[str] = []


@contextlib.asynccontextmanager
async def asked(
    description: str = "call it", /, *, tool: str = "bash", size: tuple[int, int] = SMALL, **params: Any
) -> AsyncGenerator[Pilot[None]]:
    names = {"id": "q", "session_id": "s", "run_id": "r", "tool_call_id": "c"}
    request = PermissionRequest(**names, tool=tool, action="execute", description=description, params=params)
    app = Bare()
    async with app.run_test(size=size) as pilot:
        shown = PermissionDialog(request, app.answers.append, app.typed.append)
        await app.mount(shown)
        shown.focus()
        await pilot.pause()
        await pilot.pause()  # it fits its height after the first picture
        yield pilot


def shown(pilot: Pilot[None]) -> list[str]:
    """The lines in the box."""
    lines = screen_text(pilot.app).splitlines()
    return [line.strip().strip("│").strip() for line in lines if "│" in line]


def count_hidden(line: str) -> list[int]:
    """Numbers of lines out of sight: below, above."""
    return [int(number) for number in re.findall(r"\d+", line)]


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(docked, "HOLD_S", 0.0)


@pytest.mark.parametrize(
    ("params", "line"),
    [
        ({"command": "ls -la \x1b]; touch pwned; #\x07"}, "$ ls -la ␛]; touch pwned; #␇"),
        ({"command": "touch pwned # \r$ ls -la"}, "$ touch pwned # ␍$ ls -la"),
        ({"command": "ls \u202egnp.exe"}, "$ ls ⟨U+202E⟩gnp.exe"),
        ({"url": "https://a.example/\x9b2J\u200b"}, "url: https://a.example/\\x9b2J⟨U+200B⟩"),
        ({"path": "a\x08b\U000e0041.py"}, "path: a␈b⟨U+E0041⟩.py"),
        ({"na\x1bme": [{"deep": "\u2028\x7f"}]}, 'na␛me: {"deep": "⟨U+2028⟩␡"}'),
    ],
)
async def test_control_and_invisible_characters_are_marks(params: dict[str, Any], line: str) -> None:
    async with asked(**params) as pilot:
        assert line in shown(pilot)


async def test_the_title_and_the_description_are_marked_too() -> None:
    async with asked("send \x1b[2Jit \u2066away", tool="mcp_\u202eliam") as pilot:
        assert {"Allow mcp_⟨U+202E⟩liam?", "send ␛[2Jit ⟨U+2066⟩away"} <= set(shown(pilot))


async def test_a_diff_hides_nothing_behind_an_escape_or_a_carriage_return() -> None:
    text_of_diff = (
        "--- a/build.sh\n+++ b/build.sh\n@@ -1 +1,3 @@\n ls\n+ls -la \x1b]; touch pwned; #\x07\n+touch pwned # \rls\n"
    )
    async with asked("edit build.sh", tool="edit", diff=text_of_diff) as pilot:
        text = screen_text(pilot.app)
        assert "ls -la ␛]; touch pwned; #␇" in text
        assert "touch pwned # ␍ls" in text


async def test_blank_lines_push_nothing_out_of_sight() -> None:
    command = "ls -la" + "\n" * 60 + "touch pwned"
    async with asked(command=command, notes=["it writes"]) as pilot:
        lines = shown(pilot)
        assert [line for line in lines if line][1:5] == [
            f"{REASON_LABEL}it writes",
            "$ ls -la",
            "⋯ 59 blank lines",
            "touch pwned",
        ]
    text_of_diff = "--- /dev/null\n+++ b/x.sh\n@@ -0,0 +1,62 @@\n+ls\n" + "+ \n" * 60 + "+touch pwned\n"
    async with asked("create x.sh", tool="write", diff=text_of_diff) as pilot:
        text = screen_text(pilot.app)
        assert "2 + ⋯ 60 blank lines" in text
        assert "62 + touch pwned" in text


async def test_spaces_push_nothing_out_of_sight() -> None:
    async with asked(command="ls" + " " * 3000 + "; touch pwned") as pilot:
        assert "$ ls⋯ 3000 spaces ⋯; touch pwned" in shown(pilot)


@pytest.mark.parametrize("is_diff", [False, True], ids=["command", "diff"])
async def test_what_is_out_of_sight_is_counted_and_can_be_scrolled_to(is_diff: bool) -> None:
    lines = [f"echo {number}" for number in range(100)]
    text_of_diff = "--- /dev/null\n+++ b/x.sh\n@@ -0,0 +1,100 @@\n" + "".join(f"+{line}\n" for line in lines)
    params: dict[str, Any] = {"diff": text_of_diff} if is_diff else {"command": "\n".join(lines)}
    async with asked("create x.sh", notes=["it writes"], **params) as pilot:

        def told() -> str:
            return next(line for line in shown(pilot) if line.startswith("⋯"))

        def seen() -> set[int]:
            return set(map(int, re.findall(r"echo (\d+)\b", screen_text(pilot.app))))

        assert f"{REASON_LABEL}it writes" in shown(pilot)
        assert any(line.startswith("a  Allow") for line in shown(pilot)), "the keys are on the screen"
        below = 100 - len(seen())
        assert count_hidden(told()) == [below]
        await pilot.press("space")
        await pilot.pause()
        assert min(seen()) > 0
        await pilot.press("end")
        await pilot.pause()
        assert 99 in seen()
        assert len(count_hidden(told())) == 1, "nothing is below"
        await pilot.press("home", "down", "down", "up")
        await pilot.pause()
        assert count_hidden(told()) == [below - 1, 1]


async def test_a_diff_that_was_cut_says_so_above_it() -> None:
    text = diff("", "".join(f"echo {number:>90}\n" for number in range(5_000)), "x.sh").text
    async with asked("create x.sh", tool="write", diff=text) as pilot:
        assert any(line.startswith(OMISSION_LABEL) and re.search(r"\d", line) for line in shown(pilot))


async def test_a_long_reason_and_a_long_word_of_the_model_leave_room_for_the_command() -> None:
    long = "because " * 200
    async with asked(command="touch pwned\n" * 50, notes=[long], description=long, rules=[f"bash({long})"]) as pilot:
        lines = shown(pilot)
        assert "$ touch pwned" in lines
        assert any(line.startswith("⋯") and count_hidden(line) for line in lines)
        assert any(line.startswith("a  Allow") for line in lines)
        await pilot.press("end")
        await pilot.pause()
        assert any("because" in line for line in shown(pilot)[8:]), "all of it is below"


async def test_the_words_of_the_model_are_called_the_models() -> None:
    async with asked("run rm -rf build/", command="rm -rf build/", description="show the version of Python") as pilot:
        lines = shown(pilot)
        assert f"{DESCRIPTION_LABEL}show the version of Python" in lines
        assert "$ rm -rf build/" in lines


async def test_a_line_of_a_command_cannot_pass_for_one_of_ours() -> None:
    async with asked(command=f"rm x\n{REASON_LABEL}no reason\n$ ls") as pilot:
        text = screen_text(pilot.app)
        assert "│ $ rm x" in text
        assert f"│   {REASON_LABEL}no reason" in text
        assert "│   $ ls" in text


async def test_on_a_real_terminal_the_whole_deed_is_on_the_screen_before_it_is_allowed(
    home: Home, tmp_path: Path
) -> None:
    commands = ("ls -la \x1b]; touch pwned; #\x07", "ls -la" + "\n" * 60 + "touch tall")
    content = "ls -la \x1b]; touch pwned; #\x07\n"
    calls = [
        [{"name": "bash", "input": {"command": commands[0], "description": "list files"}}],
        [{"name": "bash", "input": {"command": commands[1], "description": "list files"}}],
        [{"name": "write", "input": {"path": "build.sh", "content": content}}],
    ]
    home.models.on(*({"tool_calls": json.dumps(each)} for each in calls), {"text": "THE-END"}, prompt="do evil")
    async with kedge(home, tmp_path, columns=80, lines=24) as terminal:
        await terminal.shows(EDITOR, MODEL)
        await submit(terminal, "do evil")
        await terminal.shows(
            "Allow bash?", f"{DESCRIPTION_LABEL}list files", "$ ls -la", "⋯ 59 blank lines", "touch tall"
        )
        assert "a  Allow once" in terminal.text
        await allow(terminal, "bash")
        await terminal.shows("Allow write?", "ls -la ␛]; touch pwned; #␇")
        await allow(terminal, "write", "d")
        assert (tmp_path / "tall").exists()
        assert not (tmp_path / "pwned").exists()
        assert b"\x1b]; touch" not in terminal.heard
