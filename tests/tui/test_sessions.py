"""Sessions, models, files and jobs in their dialogs, with the real server."""

from __future__ import annotations

import json
from pathlib import Path

from textual.widgets import Input, OptionList

from kedge.client import AsyncClient
from tests.e2e.home import Home, asking
from tests.tui.hands import Hands, kedge


def lines(hands: Hands) -> list[str]:
    found = hands.app.screen.query_one(OptionList)
    return [str(found.get_option_at_index(index).prompt) for index in range(found.option_count)]


async def test_sessions_are_searched_opened_renamed_and_deleted(served: Home, tmp_path: Path) -> None:
    async with kedge(tmp_path) as hands, await AsyncClient.connect(str(tmp_path)) as other:
        first = await other.create_session("First one")
        await other.create_session("Second one")
        run = await other.run(asking(text="a rare word: kingfisher"), session_id=first.id)
        await run.wait()
        await hands.press("ctrl+s")
        await hands.opens("SessionDialog")
        await hands.until(lambda: len(lines(hands)) == 2, "both are there")
        await hands.write("second")
        await hands.until(lambda: len(lines(hands)) == 1 and "Second one" in lines(hands)[0], "by its title")
        hands.app.screen.query_one(Input).value = "kingfisher"
        await hands.until(lambda: len(lines(hands)) == 1 and "First one" in lines(hands)[0], "by what was said")
        await hands.press("enter")
        await hands.shows("a rare word: kingfisher")
        assert hands.app.chat.session_id == first.id

        await hands.press("ctrl+s")
        await hands.opens("SessionDialog")
        await other.call("PATCH", f"/sessions/{first.id}", {"title": "Their name"}, type=dict)
        await hands.shows("Their name")
        await hands.write("their")
        await hands.until(lambda: len(lines(hands)) == 1, "by its new title")
        await hands.press("ctrl+r")
        hands.app.screen.query_one(Input).value = "My name"
        await hands.press("enter")
        await hands.until(lambda: any("My name" in line for line in lines(hands)), "renamed")
        await hands.press("ctrl+r", "escape")
        assert hands.dialog("SessionDialog"), "Esc leaves the field, not the list"
        await hands.press("ctrl+d")
        await hands.opens("ConfirmDialog")
        await hands.press("enter")  # keeps it
        await hands.opens("SessionDialog")
        assert len(lines(hands)) == 2
        await hands.press("ctrl+d")
        await hands.opens("ConfirmDialog")
        await hands.press("up", "enter")
        await hands.until(lambda: hands.dialog("SessionDialog") and len(lines(hands)) == 1, "deleted")
        await hands.press("escape")
        await hands.shows("The session was deleted")


async def test_a_model_is_chosen_for_the_session(served: Home, tmp_path: Path) -> None:
    async with kedge(tmp_path) as hands:
        await hands.submit(asking(text="FIRST"))
        await hands.shows("FIRST")
        await hands.idle()
        await hands.press("ctrl+o")
        await hands.opens("ModelDialog")
        await hands.shows("openai/fake-model")
        await hands.write("fake")
        await hands.until(lambda: lines(hands) and all("fake" in line for line in lines(hands)), "filtered")
        await hands.press("escape")
        await hands.submit("/model openai/other-model")
        await hands.shows("openai/other-model")
        await hands.submit(asking(text="SECOND"))
        await hands.shows("SECOND", "openai/other-model · ")
        body = {"model": "openai/their-model"}
        async with await AsyncClient.connect(str(tmp_path)) as other:
            await other.call("PATCH", f"/sessions/{hands.app.chat.session_id}", body, type=dict)
        await hands.shows("  ask  openai/their-model")
        await hands.press("ctrl+n")
        await hands.shows("keys and commands", "  ask  openai/fake-model")


async def test_a_title_is_edited_with_the_keys_that_else_delete_sessions(served: Home, tmp_path: Path) -> None:
    async with kedge(tmp_path) as hands:
        session = await hands.app.desk.create_session()
        await hands.app.desk.rename(session.id, "titled")
        await hands.press("ctrl+s")
        await hands.opens("SessionDialog")
        await hands.shows("titled")
        await hands.press("ctrl+r", "home", "delete", "enter")
        await hands.until(lambda: hands.app.workspace.sessions[session.id].title == "itled", "renamed")
        assert hands.dialog("SessionDialog")


async def test_a_provider_without_a_key_asks_for_it(served: Home, tmp_path: Path) -> None:
    async with kedge(tmp_path) as hands:
        await hands.press("ctrl+o")
        await hands.opens("ModelDialog")
        await hands.write("anthropic")
        await hands.until(lambda: len(lines(hands)) == 1, "filtered")
        await hands.press("enter")
        await hands.opens("KeyDialog")
        await hands.shows("Key for Anthropic")


async def change(hands: Hands, home: Home, directory: Path) -> None:
    """A prompt that changes one file and makes another."""
    (directory / "old.txt").write_text("one\ntwo\n")
    steps = (
        [("view", {"path": "old.txt"})],
        [
            ("edit", {"path": "old.txt", "old_string": "two", "new_string": "TWO"}),
            ("write", {"path": "new.txt", "content": "made\n"}),
        ],
    )
    home.models.on(
        *({"tool_calls": json.dumps([{"name": name, "input": given} for name, given in step])} for step in steps),
        {"text": "CHANGED"},
        prompt="change two files",
    )
    await hands.submit("change two files")
    await hands.shows("CHANGED")
    await hands.idle()


async def test_changes_are_shown_undone_and_done_again(served: Home, tmp_path: Path) -> None:
    async with kedge(tmp_path, (120, 40), mode="yolo") as hands:
        await change(hands, served, tmp_path)
        await hands.press("f4")
        await hands.opens("ChangesDialog")
        await hands.shows("new.txt", "old.txt")
        await hands.press("down")
        await hands.shows("TWO")
        one_column = hands.text
        await hands.press("v")
        await hands.until(lambda: hands.text != one_column, "side by side")
        await hands.press("escape")
        await hands.submit("/undo")
        await hands.opens("ConfirmDialog")
        await hands.shows("Undo?", "change two files", "new.txt goes", "old.txt changes")
        await hands.press("escape")
        assert (tmp_path / "new.txt").exists()
        await hands.submit("/undo")
        await hands.opens("ConfirmDialog")
        await hands.press("up", "enter")
        await hands.shows("Undone: 2 files changed")
        await hands.hides("CHANGED")
        assert not (tmp_path / "new.txt").exists()
        assert (tmp_path / "old.txt").read_text() == "one\ntwo\n"
        assert hands.app.chat.editor.text == "change two files"
        hands.app.chat.editor.clear()
        await hands.submit("/redo")
        await hands.opens("ConfirmDialog")
        await hands.press("up", "enter")
        await hands.shows("CHANGED", "Redone")
        assert (tmp_path / "old.txt").read_text() == "one\nTWO\n"


async def test_an_undo_marks_what_a_background_job_may_have_changed_and_undoes_it_only_if_asked(
    served: Home, tmp_path: Path
) -> None:
    (tmp_path / "mine.txt").write_text("one\n")
    job = "while test ! -e over; do sleep 0.05; done"
    async with kedge(tmp_path, (120, 40), mode="yolo") as hands:
        calls = [
            {"name": "bash", "input": {"command": "touch started"}},
            {"name": "bash", "input": {"command": job, "run_in_background": True}},
        ]
        served.models.on({"tool_calls": json.dumps(calls)}, {"text": "SERVING"}, prompt="serve it")
        await hands.submit("serve it")
        await hands.shows("SERVING")
        await hands.idle()
        (tmp_path / "mine.txt").write_text("by hand\n")
        await hands.submit("/undo")
        await hands.opens("ConfirmDialog")
        await hands.shows("? mine.txt is left", "including the files marked ?")
        await hands.press("up", "up", "enter")
        await hands.shows("Undone: 1 file changed, 1 left as it is")
        assert (tmp_path / "mine.txt").read_text() == "by hand\n"
        hands.app.chat.editor.clear()
        await hands.submit("/redo")
        await hands.opens("ConfirmDialog")
        await hands.press("up", "enter")
        await hands.shows("SERVING", "Redone")
        await hands.submit("/undo")
        await hands.opens("ConfirmDialog")
        await hands.press("up", "enter")
        await hands.shows("Undone: 2 files changed")
        assert (tmp_path / "mine.txt").read_text() == "one\n"
        (tmp_path / "over").touch()


async def test_a_reopened_session_shows_the_files_it_changed(served: Home, tmp_path: Path) -> None:
    async with kedge(tmp_path, (140, 40), mode="yolo") as hands:
        await change(hands, served, tmp_path)
        await hands.shows("new.txt +1 -0", "old.txt +1 -1")
        session_id = hands.app.chat.session_id
        await hands.press("ctrl+n")
        await hands.hides("Changed files")
    async with kedge(tmp_path, (140, 40), session_id=session_id) as hands:
        await hands.shows("CHANGED", "Changed files", "new.txt +1 -0", "old.txt +1 -1")
        await hands.submit("/undo")
        await hands.opens("ConfirmDialog")
        await hands.press("up", "enter")
        await hands.hides("Changed files")


async def test_an_undo_by_another_client_shows_at_once(served: Home, tmp_path: Path) -> None:
    async with kedge(tmp_path, mode="yolo") as hands, await AsyncClient.connect(str(tmp_path)) as other:
        await change(hands, served, tmp_path)
        await other.call("POST", f"/sessions/{hands.app.chat.session_id}/undo", {}, type=dict)
        await hands.hides("CHANGED")


async def test_an_undo_of_a_command_names_it_and_gives_it_back(served: Home, tmp_path: Path) -> None:
    async with kedge(tmp_path) as hands:
        await hands.submit("!echo TO-BE-UNDONE")
        await hands.shows("! echo TO-BE-UNDONE")
        await hands.idle()
        await hands.submit("/undo")
        await hands.opens("ConfirmDialog")
        await hands.shows("“!echo TO-BE-UNDONE”", "No file changes.")
        await hands.press("up", "enter")
        await hands.until(lambda: hands.app.chat.editor.text == "!echo TO-BE-UNDONE", "to be sent again")


async def test_a_fork_goes_on_in_a_copy(served: Home, tmp_path: Path) -> None:
    async with kedge(tmp_path) as hands:
        await hands.submit(asking(text="BEFORE"))
        await hands.shows("BEFORE")
        await hands.idle()
        before = hands.app.chat.session_id
        await hands.submit("/fork")
        await hands.until(lambda: hands.app.chat.session_id != before, "another session")
        await hands.shows("BEFORE", "You are in the copy now")


async def test_jobs_are_listed_and_ended(served: Home, tmp_path: Path) -> None:
    job = json.dumps([{"name": "bash", "input": {"command": "exec sleep 300", "run_in_background": True}}])
    served.models.on({"tool_calls": job}, {"text": "STARTED"}, prompt="start a job")
    async with kedge(tmp_path, mode="yolo") as hands:
        await hands.submit("start a job")
        await hands.shows("STARTED")
        await hands.submit("/jobs")
        await hands.opens("JobsDialog")
        await hands.shows("running", "exec sleep 300")
        await hands.press("k")
        await hands.shows("ended")
        await hands.press("escape")
        await hands.closes()


async def test_a_run_that_failed_leaves_nothing_when_it_is_undone(served: Home, tmp_path: Path) -> None:
    served.models.on({"status": 400, "error": "bad_request"}, prompt="fail me")
    async with kedge(tmp_path) as hands:
        await hands.submit(asking(text="BEFORE"))
        await hands.shows("BEFORE")
        await hands.idle()
        await hands.submit("fail me")
        await hands.shows("✗", "planned failure")
        await hands.idle()
        await hands.submit("/undo")
        await hands.opens("ConfirmDialog")
        await hands.press("up", "enter")
        await hands.closes()
        await hands.until(lambda: "Undone" in str(hands.told), "undone")
        await hands.hides("planned failure")
        await hands.shows("BEFORE")
        hands.app.chat.editor.clear()
        session_id = hands.app.chat.session_id
    async with kedge(tmp_path, session_id=session_id) as hands:
        await hands.shows("BEFORE")
        assert "planned failure" not in hands.text
        await hands.submit("/redo")
        await hands.opens("ConfirmDialog")
        await hands.press("up", "enter")
        await hands.shows("BEFORE", "▌ fail me", "planned failure")


async def test_another_session_that_asks_is_named_with_what_it_asks_before_the_first_prompt_too(
    served: Home, tmp_path: Path
) -> None:
    prompt = "make it elsewhere"
    call = {"name": "bash", "input": {"command": "touch made", "description": "Make it"}}
    served.models.on({"tool_calls": json.dumps([call])}, {"text": "THE-END"}, prompt=prompt)
    async with kedge(tmp_path) as hands, await AsyncClient.connect(str(tmp_path)) as other:
        elsewhere = await other.create_session("Elsewhere [/here]")
        await other.submit(prompt, session_id=elsewhere.id, permissions="ask")
        await hands.until(lambda: "Elsewhere [/here]: asks\nrun touch made" in hands.told, "who asks, and what")
        await hands.shows("Elsewhere [/here]: asks", "run touch made")
        await other.cancel(session_id=elsewhere.id)
