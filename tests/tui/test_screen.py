"""Prompts, answers and what goes wrong with them, in the interface with the real server."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from kedge.client import AsyncClient
from kedge.protocol.api import Runs
from kedge.tui import api
from kedge.tui.editor.draft import Draft
from kedge.tui.state.blocks import CallBlock
from tests.e2e.home import Home, asking
from tests.tui.hands import kedge


def calls(*named: tuple[str, dict[str, object]]) -> str:
    return json.dumps([{"name": name, "input": given} for name, given in named])


async def test_an_empty_session_says_where_one_is_and_how_to_begin(served: Home, tmp_path: Path) -> None:
    async with kedge(tmp_path, (140, 30)) as hands:
        await hands.shows("kedge", tmp_path.name, "openai/fake-model", "F1", "keys and commands", "Ctrl+P")
        await hands.submit(asking(text="**bold** words"))
        await hands.shows("bold words", "11 tokens")
        assert "keys and commands" not in hands.text


async def test_a_refused_prompt_is_back_in_the_editor(served: Home, tmp_path: Path) -> None:
    async with kedge(tmp_path, model="not-a-model") as hands:
        await hands.submit("this is refused")
        await hands.shows("Not sent:", "▌ this is refused")
        assert hands.app.chat.session is None or not hands.app.chat.session.runs
        await hands.press("x")  # typing goes on, and the word goes
        await hands.hides("Not sent:")
        assert "x" in hands.app.chat.editor.text


async def test_a_prompt_that_no_server_took_runs_once_when_there_is_one(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in home.env.items():
        monkeypatch.setenv(name, value)
    server = await asyncio.to_thread(home.serve)
    async with kedge(tmp_path, host=f"unix://{home.socket_path}") as hands:
        await hands.submit(asking(text="FIRST"))
        await hands.shows("FIRST")
        await hands.idle()
        await asyncio.to_thread(server.kill)
        await hands.shows("The server cannot be reached", "Nothing is lost")
        with monkeypatch.context() as impatient:
            impatient.setattr(api, "SUBMIT_S", 0.5)
            await hands.submit(asking(text="SECOND"))
            await hands.shows("Not sent", "Enter tries again", "text=SECOND")
        monkeypatch.setattr(api, "SUBMIT_S", 30.0)  # enough for a busy machine
        server = await asyncio.to_thread(home.serve)
        hands.app.link.retry()
        await hands.hides("cannot be reached")
        await hands.press("enter")
        await hands.until(lambda: not hands.app.chat.editor.text, "it is gone from the editor")
        await hands.idle()
        runs = await hands.app.desk.call("GET", f"/runs?session_id={hands.app.chat.session_id}", type=Runs)
        assert sorted(run.prompt for run in runs.runs) == [asking(text="FIRST"), asking(text="SECOND")]
    assert await asyncio.to_thread(server.stop) == 0


async def test_a_run_that_fails_before_its_first_message_says_why(served: Home, tmp_path: Path) -> None:
    async with kedge(tmp_path, model="nobody/nothing") as hands:
        await hands.submit("before the first message")
        await hands.shows("▌ before the first message", "✗ there is no provider 'nobody'")
        await hands.idle()


async def test_thoughts_are_folded_until_they_are_clicked(served: Home, tmp_path: Path) -> None:
    served.models.on({"reasoning": "first thought\n\nsecond thought", "text": "ANSWER"}, prompt="think first")
    async with kedge(tmp_path) as hands:
        await hands.submit("think first")
        await hands.shows("∴ Thought", "ANSWER")
        assert "second thought" not in hands.text
        row = next(y for y, line in enumerate(hands.text.splitlines()) if "∴ Thought" in line)
        await hands.pilot.click("Transcript", offset=(5, row))
        await hands.shows("second thought")
        await hands.pilot.click("Transcript", offset=(5, row))
        await hands.hides("second thought")
        await hands.press("f7")
        await hands.shows("second thought")


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
    async with kedge(tmp_path) as hands:
        await hands.submit("send a child")
        await hands.shows("PARENT-ENDS", "✓ agent")
        await hands.idle()
        parent = hands.app.chat.session_id
        await hands.press("f6", "up", "up", "up")
        await hands.until(lambda: isinstance(hands.app.chat.transcript.selected, CallBlock), "the call is selected")
        await hands.press("enter")
        await hands.shows("Esc goes back", "CHILD-ENDS", "view")
        assert hands.app.chat.session_id != parent
        await hands.press("escape")
        await hands.shows("PARENT-ENDS", "1 call")
        assert hands.app.chat.session_id == parent
    async with kedge(tmp_path, session_id=parent) as hands:
        await hands.shows("PARENT-ENDS", "✓ agent looks", "1 call")
        await hands.press("f7")
        await hands.shows("│ ✓ view notes.txt", "│ CHILD-ENDS")


async def test_a_session_has_the_beginning_of_its_first_prompt_for_a_title(served: Home, tmp_path: Path) -> None:
    async with kedge(tmp_path, (140, 30)) as hands:
        await hands.submit(f"Look at the anchor\n\n{asking(text='LOOKED')}")
        await hands.shows("LOOKED")
        assert hands.app.chat.session_id is not None
        assert hands.app.workspace.sessions[hands.app.chat.session_id].title.startswith("Look at the anchor [[fake")
        await hands.idle()
        await hands.press("ctrl+n")
        await hands.submit("!echo by-hand")
        await hands.shows("by-hand", "New session")  # a command does not say what a session is about


async def test_prompts_sent_in_one_breath_go_into_one_session_in_their_order(served: Home, tmp_path: Path) -> None:
    async with kedge(tmp_path) as hands:
        for text in ("ONE", "TWO", "THREE"):
            hands.app.chat.editor.put_back(asking(text=text))
            hands.app.chat.editor.action_submit()
        await hands.shows("ONE", "TWO", "THREE")
        await hands.idle()
        assert len(await hands.app.desk.sessions()) == 1
        session = hands.app.chat.session
        assert session is not None
        accepted = sorted(session.runs.values(), key=lambda run: run.seq)
        assert [run.prompt for run in accepted] == [asking(text=text) for text in ("ONE", "TWO", "THREE")]


async def test_a_prompt_that_had_arrived_is_not_sent_twice_in_another_mode(served: Home, tmp_path: Path) -> None:
    async with kedge(tmp_path) as hands:
        chat = hands.app.chat
        await hands.submit(asking(text="ARRIVED"))
        await hands.shows("ARRIVED")
        await hands.idle()
        session = chat.session
        assert session is not None
        (run_id,) = session.runs
        del session.runs[run_id]  # as if nothing had been told of it: neither receipt nor story
        draft = Draft(asking(text="ARRIVED"))
        chat.sending._unsent[run_id] = draft
        chat.choose_mode("plan")
        chat.send(draft)
        await hands.shows("It had been sent before")
        runs = await hands.app.desk.call("GET", f"/runs?session_id={chat.session_id}", type=Runs)
        assert [run.run_id for run in runs.runs] == [run_id]


async def test_a_session_that_cannot_be_opened_leaves_the_one_that_is_open(served: Home, tmp_path: Path) -> None:
    async with kedge(tmp_path) as hands:
        await hands.submit(asking(text="STAYS"))
        await hands.shows("STAYS")
        await hands.idle()
        hands.app.chat.open_session("nobody")
        await hands.until(lambda: hands.told, "a word on why")
        await hands.shows("STAYS")
        assert list(hands.app.workspace.open_sessions) == [hands.app.chat.session_id]
        await hands.submit(asking(text="GOES-ON"))
        await hands.shows("STAYS", "GOES-ON")


async def test_leaving_from_a_dialog_asks_too(served: Home, tmp_path: Path) -> None:
    async with kedge(tmp_path) as hands:
        await hands.submit(asking(gate="left-from-a-dialog"))
        await hands.until(lambda: hands.app.chat.session and hands.app.chat.session.is_busy, "it runs")
        await hands.press("f1")
        await hands.opens("HelpDialog")
        await hands.press("ctrl+q")
        await hands.opens("ConfirmDialog")
        await hands.shows("It goes on without you")
        await hands.press("enter", "escape")  # stays
        await hands.closes()
        served.models.release("left-from-a-dialog")
        await hands.idle()


async def test_a_shell_command_shows_what_it_printed(served: Home, tmp_path: Path) -> None:
    async with kedge(tmp_path) as hands:
        await hands.submit("!echo from-the-$((40 + 2)); exit 3")
        await hands.shows("from-the-42", "exit 3")


async def test_tasks_and_changed_files_are_beside_the_chat(served: Home, tmp_path: Path) -> None:
    todos = [{"content": "look", "status": "completed"}, {"content": "change it", "status": "in_progress"}]
    served.models.on(
        {"tool_calls": calls(("todos", {"todos": todos}), ("write", {"path": "new.txt", "content": "one\ntwo\n"}))},
        {"text": "THE-END"},
        prompt="with a plan",
    )
    async with kedge(tmp_path, (140, 40), mode="yolo") as hands:
        await hands.submit("with a plan")
        await hands.shows("THE-END", "Tasks", "✓ look", "● change it", "Changed files", "new.txt +2 -0")
        await hands.press("ctrl+b")
        await hands.hides("Changed files")
        await hands.press("ctrl+b")
        await hands.shows("Changed files")


async def test_leaving_a_run_can_cancel_it(served: Home, tmp_path: Path) -> None:
    async with kedge(tmp_path) as hands:
        await hands.submit(asking(gate="leave-and-cancel"))
        await hands.shows("Working")
        await hands.press("ctrl+c")
        await hands.opens("ConfirmDialog")
        await hands.press("escape")
        await hands.closes()
        await hands.press("ctrl+c")
        await hands.opens("ConfirmDialog")
        await hands.press("up", "enter")
        await hands.until(lambda: hands.app.return_code == 0, "it left")
        assert hands.app.chat.session is not None
        session_id = hands.app.chat.session_id
    async with kedge(tmp_path, session_id=session_id) as hands:
        await hands.shows("■")


async def test_what_other_clients_do_to_the_session_shows_at_once(served: Home, tmp_path: Path) -> None:
    async with kedge(tmp_path, (140, 30)) as hands, await AsyncClient.connect(str(tmp_path)) as other:
        await hands.submit(asking(text="MINE"))
        await hands.shows("MINE")
        session_id = hands.app.chat.session_id
        assert session_id is not None
        await other.call("PATCH", f"/sessions/{session_id}", {"title": "Their title"}, type=dict)
        await hands.shows("Their title")
        await other.submit(asking(text="THEIRS"), session_id=session_id)
        await hands.shows("THEIRS")
        await hands.idle()
        await hands.write("half-typed")
        await other.call("DELETE", f"/sessions/{session_id}", type=dict)
        await hands.shows("The session was deleted", "half-typed", "keys and commands")
        await hands.press("enter")
        await hands.shows("▌ half-typed", "FAKE-ANSWER-OK")
