"""Prompts, answers and what goes wrong with them, in the interface with the real server."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from kedge.client import AsyncClient
from kedge.protocol.api import Runs
from kedge.protocol.runs import Attachment
from kedge.tui import api
from kedge.tui.editor.draft import Draft
from kedge.tui.state.blocks import CallBlock
from tests.e2e.home import Home, asking
from tests.tui.editor.test_clipboard import PNG
from tests.tui.ui_driver import kedge


def calls(*named: tuple[str, dict[str, object]]) -> str:
    return json.dumps([{"name": name, "input": given} for name, given in named])


async def test_an_empty_session_says_where_one_is_and_how_to_begin(served: Home, tmp_path: Path) -> None:
    async with kedge(tmp_path, (140, 30)) as ui:
        await ui.shows("kedge", tmp_path.name, "openai/fake-model", "F1", "Command palette", "Ctrl+P")
        await ui.submit(asking(text="**bold** words"))
        await ui.shows("bold words", "11 tokens")
        assert "Command palette" not in ui.text


async def test_an_attached_image_has_the_name_of_its_file(served: Home, tmp_path: Path) -> None:
    for name in ("shot.png", "second shot.png"):
        (tmp_path / name).write_bytes(PNG)
    async with kedge(tmp_path, (100, 30)) as ui:
        await ui.submit(f'compare @shot.png with @"second shot.png" {asking(text="SEEN")}')
        await ui.shows("SEEN", "▣ shot.png", "▣ second shot.png")


async def test_a_refused_prompt_is_back_in_the_editor(served: Home, tmp_path: Path) -> None:
    async with kedge(tmp_path, model="not-a-model") as ui:
        await ui.submit("this is refused")
        await ui.shows("Not sent:", "▌ this is refused")
        assert ui.app.chat.session is None or not ui.app.chat.session.runs
        await ui.press("x")  # typing goes on, and the word goes
        await ui.hides("Not sent:")
        assert "x" in ui.app.chat.editor.text


async def test_a_prompt_that_no_server_took_runs_once_when_there_is_one(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in home.env.items():
        monkeypatch.setenv(name, value)
    server = await asyncio.to_thread(home.serve)
    async with kedge(tmp_path, host=f"unix://{home.socket_path}") as ui:
        await ui.submit(asking(text="FIRST"))
        await ui.until(lambda: ui.text.count("FIRST") > 1, "the prompt and its answer")
        await ui.idle()
        await asyncio.to_thread(server.kill)
        await ui.shows("reach the server", "Nothing is lost")
        with monkeypatch.context() as impatient:
            impatient.setattr(api, "SUBMIT_S", 0.5)
            await ui.submit(asking(text="SECOND"))
            await ui.shows("Not sent", "Enter to retry", "text=SECOND")
        monkeypatch.setattr(api, "SUBMIT_S", 30.0)  # enough for a busy machine
        server = await asyncio.to_thread(home.serve)
        ui.app.sync.retry()
        await ui.hides("cannot be reached")
        await ui.press("enter")
        await ui.until(lambda: not ui.app.chat.editor.text, "it is gone from the editor")
        await ui.until(lambda: ui.text.count("SECOND") > 1, "the prompt and its answer")
        await ui.idle()
        runs = await ui.app.api.call("GET", f"/runs?session_id={ui.app.chat.session_id}", type=Runs)
        assert sorted(run.prompt for run in runs.runs) == [asking(text="FIRST"), asking(text="SECOND")]
    assert await asyncio.to_thread(server.stop) == 0


async def test_a_run_that_fails_before_its_first_message_says_why(served: Home, tmp_path: Path) -> None:
    async with kedge(tmp_path, model="nobody/nothing") as ui:
        await ui.submit("before the first message")
        await ui.shows("▌ before the first message", "provider 'nobody'")
        await ui.idle()


async def test_thoughts_are_folded_until_they_are_clicked(served: Home, tmp_path: Path) -> None:
    served.models.on({"reasoning": "first thought\n\nsecond thought", "text": "ANSWER"}, prompt="think first")
    async with kedge(tmp_path) as ui:
        await ui.submit("think first")
        await ui.shows("∴ Thought", "ANSWER")
        assert "second thought" not in ui.text
        row = next(y for y, line in enumerate(ui.text.splitlines()) if "∴ Thought" in line)
        await ui.pilot.click("Transcript", offset=(5, row))
        await ui.shows("second thought")
        await ui.pilot.click("Transcript", offset=(5, row))
        await ui.hides("second thought")
        await ui.press("f7")
        await ui.shows("second thought")


async def test_a_sub_agent_is_nested_and_its_session_has_a_way_back(served: Home, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("one\n")
    served.models.on(
        {"tool_calls": calls(("view", {"path": "notes.txt"})), "text": "CHILD-LOOKS"},
        {"text": "CHILD-ENDS"},
        prompt="be the child",
    )
    served.models.on(
        {"tool_calls": calls(("agent", {"prompt": "be the child", "title": "looks"}))},
        {"text": "PARENT-ENDS"},
        prompt="send a child",
    )
    async with kedge(tmp_path) as ui:
        await ui.submit("send a child")
        await ui.shows("PARENT-ENDS", "✓ agent")
        await ui.idle()
        parent = ui.app.chat.session_id
        await ui.press("f6", "up", "up", "up")
        await ui.until(lambda: isinstance(ui.app.chat.transcript.selected, CallBlock), "the call is selected")
        await ui.press("enter")
        await ui.shows("Esc to go back", "CHILD-ENDS", "view")
        assert ui.app.chat.session_id != parent
        await ui.press("escape")
        await ui.shows("PARENT-ENDS", "1 call")
        assert ui.app.chat.session_id == parent
    async with kedge(tmp_path, session_id=parent) as ui:
        await ui.shows("PARENT-ENDS", "✓ agent looks", "1 call")
        await ui.press("f7")
        await ui.shows("│ ✓ view notes.txt", "│ CHILD-ENDS")


async def test_a_session_has_the_beginning_of_its_first_prompt_for_a_title(served: Home, tmp_path: Path) -> None:
    async with kedge(tmp_path, (140, 30)) as ui:
        await ui.submit(f"Look at the anchor\n\n{asking(text='LOOKED')}")
        await ui.shows("LOOKED")
        assert ui.app.chat.session_id is not None
        assert ui.app.workspace.sessions[ui.app.chat.session_id].title.startswith("Look at the anchor [[fake")
        await ui.idle()
        await ui.press("ctrl+n")
        await ui.submit("!echo by-hand")
        await ui.shows("by-hand", "New session")  # a command does not say what a session is about


async def test_prompts_sent_in_one_breath_go_into_one_session_in_their_order(served: Home, tmp_path: Path) -> None:
    async with kedge(tmp_path) as ui:
        for text in ("ONE", "TWO", "THREE"):
            ui.app.chat.editor.put_back(asking(text=text))
            ui.app.chat.editor.action_submit()
        await ui.shows("ONE", "TWO", "THREE")
        await ui.idle()
        assert len(await ui.app.api.sessions()) == 1
        session = ui.app.chat.session
        assert session is not None
        accepted = sorted(session.runs.values(), key=lambda run: run.seq)
        assert [run.prompt for run in accepted] == [asking(text=text) for text in ("ONE", "TWO", "THREE")]


async def test_a_prompt_that_had_arrived_is_not_sent_twice_in_another_mode(served: Home, tmp_path: Path) -> None:
    async with kedge(tmp_path) as ui:
        chat = ui.app.chat
        await ui.submit(asking(text="ARRIVED"))
        await ui.shows("ARRIVED")
        await ui.idle()
        session = chat.session
        assert session is not None
        (run_id,) = session.runs
        del session.runs[run_id]  # as if nothing had been told of it: neither receipt nor story
        draft = Draft(asking(text="ARRIVED"))
        chat.sender._unconfirmed[run_id] = draft
        chat.choose_mode("plan")
        chat.send(draft)
        await ui.shows("already sent")
        runs = await ui.app.api.call("GET", f"/runs?session_id={chat.session_id}", type=Runs)
        assert [run.run_id for run in runs.runs] == [run_id]


async def test_a_session_that_cannot_be_opened_leaves_the_one_that_is_open(served: Home, tmp_path: Path) -> None:
    async with kedge(tmp_path) as ui:
        await ui.submit(asking(text="STAYS"))
        await ui.shows("STAYS")
        await ui.idle()
        ui.app.chat.open_session("nobody")
        await ui.until(lambda: ui.told, "a word on why")
        await ui.shows("STAYS")
        assert list(ui.app.workspace.open_sessions) == [ui.app.chat.session_id]
        await ui.submit(asking(text="GOES-ON"))
        await ui.shows("STAYS", "GOES-ON")


async def test_leaving_from_a_dialog_asks_too(served: Home, tmp_path: Path) -> None:
    async with kedge(tmp_path) as ui:
        await ui.submit(asking(gate="left-from-a-dialog"))
        await ui.until(lambda: ui.app.chat.session and ui.app.chat.session.is_busy, "it runs")
        await ui.press("f1")
        await ui.opens("HelpDialog")
        await ui.press("ctrl+q")
        await ui.opens("QuitDialog")
        await ui.shows("keep running")
        await ui.press("enter", "escape")  # stays
        await ui.closes()
        served.models.release("left-from-a-dialog")
        await ui.idle()


async def test_a_shell_command_shows_what_it_printed(served: Home, tmp_path: Path) -> None:
    async with kedge(tmp_path) as ui:
        await ui.submit("!echo from-the-$((40 + 2)); exit 3")
        await ui.shows("from-the-42", "exit 3")


async def test_tasks_and_changed_files_are_beside_the_chat(served: Home, tmp_path: Path) -> None:
    todos = [{"content": "look", "status": "completed"}, {"content": "change it", "status": "in_progress"}]
    served.models.on(
        {"tool_calls": calls(("todos", {"todos": todos}), ("write", {"path": "new.txt", "content": "one\ntwo\n"}))},
        {"text": "THE-END"},
        prompt="with a plan",
    )
    async with kedge(tmp_path, (140, 40), mode="yolo") as ui:
        await ui.submit("with a plan")
        await ui.shows("THE-END", "Tasks", "☑ look", "◐ change it", "Changed files", "new.txt +2 -0")
        await ui.press("ctrl+b")
        await ui.hides("Changed files")
        await ui.press("ctrl+b")
        await ui.shows("Changed files")


async def test_a_wait_for_a_limit_is_shown_and_can_be_ended(served: Home, tmp_path: Path) -> None:
    async with kedge(tmp_path) as ui:
        await ui.submit(asking(status=429, retry_after="3600", message="too much"))
        await ui.shows("Waiting for the rate limit of openai until", "Esc Esc to cancel", "too much")
        await ui.press("escape", "escape")
        await ui.shows("■")
        await ui.hides("Waiting for the rate limit")


async def test_leaving_a_run_can_cancel_it(served: Home, tmp_path: Path) -> None:
    async with kedge(tmp_path) as ui:
        await ui.submit(asking(gate="leave-and-cancel"))
        await ui.shows("Working")
        await ui.press("ctrl+c")
        await ui.opens("QuitDialog")
        await ui.press("escape")
        await ui.closes()
        await ui.press("ctrl+c")
        await ui.opens("QuitDialog")
        await ui.press("up", "enter")
        await ui.until(lambda: ui.app.return_code == 0, "it left")
        assert ui.app.chat.session is not None
        session_id = ui.app.chat.session_id
    async with kedge(tmp_path, session_id=session_id) as ui:
        await ui.shows("■")


async def test_what_other_clients_do_to_the_session_shows_at_once(served: Home, tmp_path: Path) -> None:
    async with kedge(tmp_path, (140, 30)) as ui, await AsyncClient.connect(str(tmp_path)) as other:
        await ui.submit(asking(text="MINE"))
        await ui.shows("MINE")
        await ui.idle()
        session_id = ui.app.chat.session_id
        assert session_id is not None
        await other.call("PATCH", f"/sessions/{session_id}", {"title": "Their title"}, type=dict)
        await ui.shows("Their title")
        await other.submit(asking(text="THEIRS"), session_id=session_id)
        await ui.shows("THEIRS")
        await ui.idle()
        await ui.write("half-typed")
        await other.call("DELETE", f"/sessions/{session_id}", type=dict)
        await ui.shows("session was deleted", "half-typed", "Command palette")
        await ui.press("enter")
        await ui.shows("▌ half-typed", "FAKE-ANSWER-OK")


async def test_canceled_prompts_come_back_with_their_attachments(served: Home, tmp_path: Path) -> None:
    (tmp_path / "named.png").write_bytes(PNG)
    async with kedge(tmp_path) as ui:
        await ui.submit(asking(gate="attached", text="NEVER"))
        await ui.shows("Working")
        await ui.write("look at @named.png and ")
        ui.app.chat.editor.put_back_prompt("this", [Attachment("shot.png", "image/png", PNG)])
        await ui.press("enter")
        await ui.shows("○")
        await ui.press("escape", "escape")
        await ui.shows("Canceled")
        await ui.until(lambda: ui.app.chat.editor.text, "back in the editor")
        content = ui.app.chat.editor.content
        assert [each.file_name for each in content.attachments] == ["shot.png"]
        assert "@named.png" in content.text
