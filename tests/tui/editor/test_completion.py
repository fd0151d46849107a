"""Completion: files of a real server, commands and their arguments; the list takes its keys, and nothing else does."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path

import pytest

from kedge.client.errors import Unreachable
from kedge.http.http1 import build_query
from kedge.tui.editor.completion import Popup
from kedge.tui.editor.draft import Draft
from tests.server.client import done
from tests.server.conftest import short_dir
from tests.server.in_process import Inside, serving
from tests.tui.editor.harness import EditorApp, typing

Files = Callable[[str], Awaitable[list[str]]]


@pytest.fixture
async def files(tmp_path: Path) -> AsyncGenerator[Files]:
    """Of a server."""
    for name in ("src/main.py", "src/deep/main_test.py", "with space/ü.txt", "README.md"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    directory = short_dir()
    async with serving(directory) as inside:
        workspace = await inside.ask(inside.client.workspace, tmp_path)
        yield _finding(inside, workspace)
    shutil.rmtree(directory)


def _finding(inside: Inside, workspace: str) -> Files:
    async def find(typed: str) -> list[str]:
        return done(await inside.ask(inside.client.get, f"{workspace}/files{build_query(q=typed, limit=20)}"))["files"]

    return find


async def test_files_are_completed_from_the_servers_names(files: Files) -> None:
    async with typing(EditorApp(files)) as ui:
        await ui.type("see @main")
        await ui.until(lambda: ui.app.popup == ["src/main.py", "src/deep/main_test.py"])
        await ui.press("down", "enter")
        assert ui.text == "see @src/deep/main_test.py "
        assert (ui.app.submitted, ui.app.popup) == ([], [])
        await ui.type("and @REA")
        await ui.until(lambda: ui.app.popup[:1] == ["README.md"])
        await ui.press("tab", "enter")
        assert ui.app.submitted == [Draft("see @src/deep/main_test.py and @README.md")]


async def test_a_directory_leads_on_and_spaces_are_quoted(files: Files) -> None:
    async with typing(EditorApp(files)) as ui:
        await ui.type("@wis")
        await ui.until(lambda: "with space/" in ui.app.popup)
        await ui.choose("with space/")
        await ui.press("tab")
        assert ui.text == '@"with space/'
        await ui.until(lambda: "with space/ü.txt" in ui.app.popup)
        await ui.choose("with space/ü.txt")
        await ui.press("tab")
        assert ui.text == '@"with space/ü.txt" '


async def test_escape_closes_the_list_and_counts_for_nothing_else(files: Files) -> None:
    async with typing(EditorApp(files)) as ui:
        await ui.type("@main")
        await ui.until(lambda: bool(ui.app.popup))
        await ui.press("escape")
        assert (ui.app.popup, ui.app.escapes, ui.text) == ([], 0, "@main")
        await ui.press("escape")
        assert ui.app.escapes == 1
        await ui.press("tab")
        await ui.until(lambda: bool(ui.app.popup))
        await ui.press("escape", "enter")
        assert ui.app.submitted == [Draft("@main")]


async def test_an_answer_that_comes_too_late_is_not_shown() -> None:
    gates = {"": asyncio.Event(), "a": asyncio.Event(), "ab": asyncio.Event()}
    asked: list[str] = []

    async def slow(typed: str) -> list[str]:
        asked.append(typed)
        await gates[typed].wait()
        return [f"{typed}.txt"]

    async with typing(EditorApp(slow)) as ui:
        await ui.type("@a")
        await ui.until(lambda: asked[-1:] == ["a"])
        await ui.type("b")
        await ui.until(lambda: asked[-1:] == ["ab"])
        gates["a"].set()
        await ui.pilot.pause()
        assert ui.app.popup == []
        gates["ab"].set()
        await ui.until(lambda: ui.app.popup == ["ab.txt"])


async def test_without_a_server_there_is_no_list_and_no_trouble() -> None:
    asked: list[str] = []

    async def unreachable(typed: str) -> list[str]:
        asked.append(typed)
        raise Unreachable("nobody is there")

    async with typing(EditorApp(unreachable)) as ui:
        await ui.type("@x")
        await ui.until(lambda: asked[-1:] == ["x"])
        await ui.press("enter")
        assert ui.app.submitted == [Draft("@x")]


async def test_commands_are_completed_and_sent_when_they_are_whole() -> None:
    async with typing() as ui:
        await ui.type("/mo")
        assert ui.app.popup == ["/model", "/mode"]
        await ui.press("down", "enter")
        assert (ui.text, ui.app.submitted) == ("/mode ", [])
        await ui.press("enter")
        assert ui.app.submitted == [Draft("/mode", kind="command")]
        await ui.type("/help")
        assert ui.app.popup == ["/help"]
        await ui.press("enter")
        assert ui.app.submitted[1] == Draft("/help", kind="command")
        ui.editor.set_commands([("mine", "my own")])
        await ui.type("/m")
        assert ui.app.popup == ["/mine"]


async def test_a_slash_or_an_at_within_a_text_completes_nothing() -> None:
    async def any_file(typed: str) -> list[str]:
        raise AssertionError(f"asked for {typed}")

    async with typing(EditorApp(any_file)) as ui:
        await ui.type("a /mo me@example")
        assert ui.app.popup == []


async def test_the_list_is_above_the_editor_and_within_the_screen() -> None:
    async def many(typed: str) -> list[str]:
        return [f"日本/{typed}{n}" + "x" * 100 for n in range(30)]

    async with typing(EditorApp(many), size=(40, 10)) as ui:
        await ui.type("@f")
        await ui.until(lambda: bool(ui.app.popup))
        await ui.pilot.pause()
        popup = ui.app.query_one(Popup)
        assert popup.region.bottom == ui.editor.region.y
        assert (popup.region.height, popup.region.right) == (8, ui.editor.region.right)
        await ui.press(*["down"] * 9)
        assert popup.chosen is not None
        assert popup.chosen.shown.startswith("日本/f9")
        await ui.press(*["up"] * 10)
        assert popup.chosen.shown.startswith("日本/f29")


async def test_enter_runs_the_command_as_typed_before_the_list_has_caught_up() -> None:
    """A key may be handled before the events of the changes that were typed before it."""
    async with typing() as ui:
        await ui.type("/mod")
        await ui.until(lambda: ui.app.popup == ["/model", "/mode"])
        ui.app.editor.insert("e")
        ui.app.editor.action_submit()  # no event of the change was handled yet
        await ui.until(lambda: ui.app.submitted == [Draft("/mode", kind="command")])
        await ui.type("/mode")
        await ui.press("down", "enter")
        assert ui.text == "/model "


async def test_enter_does_not_insert_a_file_for_an_earlier_text() -> None:
    async def find(typed: str) -> list[str]:
        return ["src/main.py"]

    async with typing(EditorApp(find)) as ui:
        await ui.type("@src")
        await ui.until(lambda: ui.app.popup == ["src/main.py"])
        ui.app.editor.insert("/other.py")
        ui.app.editor.action_submit()
        await ui.until(lambda: ui.app.submitted == [Draft("@src/other.py")])
