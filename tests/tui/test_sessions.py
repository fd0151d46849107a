"""Sessions, models, files and jobs in their dialogs, with the real server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from textual.widgets import Input, OptionList

from kedge.client import AsyncClient
from tests.e2e.home import Home, asking
from tests.tui.ui_driver import UiDriver, kedge


def lines(ui: UiDriver) -> list[str]:
    found = ui.app.screen.query_one(OptionList)
    return [str(found.get_option_at_index(index).prompt) for index in range(found.option_count)]


async def test_sessions_are_searched_opened_renamed_and_deleted(served: Home, tmp_path: Path) -> None:
    async with kedge(tmp_path) as ui, await AsyncClient.connect(str(tmp_path)) as other:
        first = await other.create_session("First one")
        await other.create_session("Second one")
        run = await other.run(asking(text="a rare word: kingfisher"), session_id=first.id)
        await run.wait()
        await ui.press("ctrl+s")
        await ui.opens("SessionDialog")
        await ui.until(lambda: len(lines(ui)) == 2, "both are there")
        await ui.write("second")
        await ui.until(lambda: len(lines(ui)) == 1 and "Second one" in lines(ui)[0], "by its title")
        ui.app.screen.query_one(Input).value = "kingfisher"
        await ui.until(lambda: len(lines(ui)) == 1 and "First one" in lines(ui)[0], "by what was said")
        await ui.press("enter")
        await ui.shows("a rare word: kingfisher")
        assert ui.app.chat.session_id == first.id

        await ui.press("ctrl+s")
        await ui.opens("SessionDialog")
        await other.call("PATCH", f"/sessions/{first.id}", {"title": "Their name"}, type=dict)
        await ui.shows("Their name")
        await ui.write("their")
        await ui.until(lambda: len(lines(ui)) == 1, "by its new title")
        await ui.press("ctrl+r")
        ui.app.screen.query_one(Input).value = "My name"
        await ui.press("enter")
        await ui.until(lambda: any("My name" in line for line in lines(ui)), "renamed")
        await ui.press("ctrl+r", "escape")
        assert ui.dialog("SessionDialog"), "Esc leaves the field, not the list"
        await ui.press("ctrl+d")
        await ui.opens("ConfirmDialog")
        await ui.press("enter")  # keeps it
        await ui.opens("SessionDialog")
        assert len(lines(ui)) == 2
        await ui.press("ctrl+d")
        await ui.opens("ConfirmDialog")
        await ui.press("up", "enter")
        await ui.until(lambda: ui.dialog("SessionDialog") and len(lines(ui)) == 1, "deleted")
        await ui.press("escape")
        await ui.shows("session was deleted")


async def test_a_model_is_chosen_for_the_session(served: Home, tmp_path: Path) -> None:
    async with kedge(tmp_path) as ui:
        await ui.submit(asking(text="FIRST"))
        await ui.shows("FIRST")
        await ui.idle()
        await ui.press("ctrl+o")
        await ui.opens("ModelDialog")
        await ui.shows("openai/fake-model")
        await ui.write("fake")
        await ui.until(lambda: lines(ui) and all("fake" in line for line in lines(ui)), "filtered")
        await ui.press("escape")
        await ui.submit("/model openai/other-model")
        await ui.shows("openai/other-model")
        await ui.submit(asking(text="SECOND"))
        await ui.shows("SECOND", "openai/other-model · ")
        body = {"model": "openai/their-model"}
        async with await AsyncClient.connect(str(tmp_path)) as other:
            await other.call("PATCH", f"/sessions/{ui.app.chat.session_id}", body, type=dict)
        await ui.shows("  ask  openai/their-model")
        await ui.press("ctrl+n")
        await ui.shows("Keys and commands", "  ask  openai/fake-model")


async def test_an_effort_is_chosen_for_the_session(served: Home, tmp_path: Path) -> None:
    async with kedge(tmp_path) as ui:
        await ui.submit(asking(text="FIRST"))
        await ui.shows("FIRST")
        await ui.idle()
        session_id = ui.app.chat.session_id
        await ui.submit("/effort highest")
        await ui.shows("Unknown effort 'highest'")
        await ui.submit("/effort xhigh")
        await ui.shows("openai/fake-model (xhigh)")
        assert ui.app.workspace.sessions[session_id or ""].effort == "xhigh"
        await ui.app.api.set_config('providers.openai.models."gpt-5.4".max_output_tokens', 9000)  # which lists it
        await ui.submit("/effort")
        await ui.shows("not known to support an effort")
        await ui.submit("/model openai/gpt-5.4")
        await ui.shows("openai/gpt-5.4 (xhigh)")
        await ui.submit("/effort")
        await ui.opens("Palette")
        await ui.until(lambda: len(lines(ui)) == 5, "those that it knows, and the default")
        assert not any("max" in line or "minimal" in line for line in lines(ui))
        await ui.write("medium")
        await ui.until(lambda: len(lines(ui)) == 1, "filtered")
        await ui.press("enter")
        await ui.shows("openai/gpt-5.4 (medium)")
        await ui.submit("/effort default")
        await ui.until(lambda: ui.app.workspace.sessions[session_id or ""].effort is None, "cleared")


async def test_a_title_is_edited_with_the_keys_that_else_delete_sessions(served: Home, tmp_path: Path) -> None:
    async with kedge(tmp_path) as ui:
        session = await ui.app.api.create_session()
        await ui.app.api.rename(session.id, "titled")
        await ui.press("ctrl+s")
        await ui.opens("SessionDialog")
        await ui.shows("titled")
        await ui.press("ctrl+r", "home", "delete", "enter")
        await ui.until(lambda: ui.app.workspace.sessions[session.id].title == "itled", "renamed")
        assert ui.dialog("SessionDialog")


async def test_a_provider_without_a_key_asks_for_it(served: Home, tmp_path: Path) -> None:
    async with kedge(tmp_path) as ui:
        await ui.press("ctrl+o")
        await ui.opens("ModelDialog")
        await ui.write("anthropic")
        await ui.until(lambda: len(lines(ui)) == 1, "filtered")
        await ui.press("enter")
        await ui.opens("KeyDialog")
        await ui.shows("Anthropic")


async def change(ui: UiDriver, home: Home, directory: Path) -> None:
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
    await ui.submit("change two files")
    await ui.shows("CHANGED")
    await ui.idle()


async def test_changes_are_shown_undone_and_done_again(served: Home, tmp_path: Path) -> None:
    async with kedge(tmp_path, (120, 40), mode="yolo") as ui:
        await change(ui, served, tmp_path)
        await ui.press("f4")
        await ui.opens("ChangesDialog")
        await ui.shows("new.txt", "old.txt")
        await ui.press("down")
        await ui.shows("TWO")
        one_column = ui.text
        await ui.press("v")
        await ui.until(lambda: ui.text != one_column, "side by side")
        await ui.press("escape")
        await ui.submit("/undo")
        await ui.opens("ConfirmDialog")
        await ui.shows("Undo?", "change two files", "new.txt will be deleted", "old.txt will be changed")
        await ui.press("escape")
        assert (tmp_path / "new.txt").exists()
        await ui.submit("/undo")
        await ui.opens("ConfirmDialog")
        await ui.press("up", "enter")
        await ui.shows("Undone: 2 files changed")
        await ui.hides("CHANGED")
        assert not (tmp_path / "new.txt").exists()
        assert (tmp_path / "old.txt").read_text() == "one\ntwo\n"
        assert ui.app.chat.editor.text == "change two files"
        ui.app.chat.editor.clear()
        await ui.submit("/redo")
        await ui.opens("ConfirmDialog")
        await ui.press("up", "enter")
        await ui.shows("CHANGED", "Redone")
        assert (tmp_path / "old.txt").read_text() == "one\nTWO\n"


async def test_an_undo_marks_what_a_background_job_may_have_changed_and_undoes_it_only_if_asked(
    served: Home, tmp_path: Path
) -> None:
    (tmp_path / "mine.txt").write_text("one\n")
    job = "while test ! -e over; do sleep 0.05; done"
    async with kedge(tmp_path, (120, 40), mode="yolo") as ui:
        calls = [
            {"name": "bash", "input": {"command": "touch started"}},
            {"name": "bash", "input": {"command": job, "run_in_background": True}},
        ]
        served.models.on({"tool_calls": json.dumps(calls)}, {"text": "SERVING"}, prompt="serve it")
        await ui.submit("serve it")
        await ui.shows("SERVING")
        await ui.idle()
        (tmp_path / "mine.txt").write_text("by hand\n")
        await ui.submit("/undo")
        await ui.opens("ConfirmDialog")
        await ui.shows("? mine.txt is not changed", "including the files marked ?")
        await ui.press("up", "up", "enter")
        await ui.shows("Undone: 1 file changed, 1 skipped")
        assert (tmp_path / "mine.txt").read_text() == "by hand\n"
        ui.app.chat.editor.clear()
        await ui.submit("/redo")
        await ui.opens("ConfirmDialog")
        await ui.press("up", "enter")
        await ui.shows("SERVING", "Redone")
        await ui.submit("/undo")
        await ui.opens("ConfirmDialog")
        await ui.press("up", "enter")
        await ui.shows("Undone: 2 files changed")
        assert (tmp_path / "mine.txt").read_text() == "one\n"
        (tmp_path / "over").touch()


async def test_a_reopened_session_shows_the_files_it_changed(served: Home, tmp_path: Path) -> None:
    async with kedge(tmp_path, (140, 40), mode="yolo") as ui:
        await change(ui, served, tmp_path)
        await ui.shows("new.txt +1 -0", "old.txt +1 -1")
        session_id = ui.app.chat.session_id
        await ui.press("ctrl+n")
        await ui.hides("Changed files")
    async with kedge(tmp_path, (140, 40), session_id=session_id) as ui:
        await ui.shows("CHANGED", "Changed files", "new.txt +1 -0", "old.txt +1 -1")
        await ui.submit("/undo")
        await ui.opens("ConfirmDialog")
        await ui.press("up", "enter")
        await ui.hides("Changed files")


async def test_an_undo_during_a_run_says_what_to_do(served: Home, tmp_path: Path) -> None:
    async with kedge(tmp_path) as ui:
        await ui.submit(asking(gate="at-work", text="THE-END"))
        await ui.until(lambda: ui.app.chat.session is not None and ui.app.chat.session.active, "it runs")
        await ui.submit("/undo")
        await ui.shows("Cancel the running turn first (Esc Esc)")
        served.models.release("at-work")
        await ui.shows("THE-END")


async def test_an_undo_by_another_client_shows_at_once(served: Home, tmp_path: Path) -> None:
    async with kedge(tmp_path, mode="yolo") as ui, await AsyncClient.connect(str(tmp_path)) as other:
        await change(ui, served, tmp_path)
        await other.call("POST", f"/sessions/{ui.app.chat.session_id}/undo", {}, type=dict)
        await ui.hides("CHANGED")


async def test_an_undo_of_a_command_names_it_and_gives_it_back(served: Home, tmp_path: Path) -> None:
    async with kedge(tmp_path) as ui:
        await ui.submit("!echo TO-BE-UNDONE")
        await ui.shows("! echo TO-BE-UNDONE")
        await ui.idle()
        await ui.submit("/undo")
        await ui.opens("ConfirmDialog")
        await ui.shows("“!echo TO-BE-UNDONE”", "No file changes.")
        await ui.press("up", "enter")
        await ui.until(lambda: ui.app.chat.editor.text == "!echo TO-BE-UNDONE", "to be sent again")


async def test_a_fork_goes_on_in_a_copy(served: Home, tmp_path: Path) -> None:
    async with kedge(tmp_path) as ui:
        await ui.submit(asking(text="BEFORE"))
        await ui.shows("BEFORE")
        await ui.idle()
        before = ui.app.chat.session_id
        await ui.submit("/fork")
        await ui.until(lambda: ui.app.chat.session_id != before, "another session")
        await ui.shows("BEFORE", "Forked")


async def test_jobs_are_listed_and_ended(served: Home, tmp_path: Path) -> None:
    job = json.dumps([{"name": "bash", "input": {"command": "exec sleep 300", "run_in_background": True}}])
    served.models.on({"tool_calls": job}, {"text": "STARTED"}, prompt="start a job")
    async with kedge(tmp_path, mode="yolo") as ui:
        await ui.submit("start a job")
        await ui.shows("STARTED")
        await ui.submit("/jobs")
        await ui.opens("JobsDialog")
        await ui.shows("running", "exec sleep 300")
        await ui.press("k")
        await ui.shows("ended")
        await ui.press("escape")
        await ui.closes()


async def test_a_run_that_failed_leaves_nothing_when_it_is_undone(served: Home, tmp_path: Path) -> None:
    served.models.on({"status": 400, "error": "bad_request"}, prompt="fail me")
    async with kedge(tmp_path) as ui:
        await ui.submit(asking(text="BEFORE"))
        await ui.shows("BEFORE")
        await ui.idle()
        await ui.submit("fail me")
        await ui.shows("✗", "planned failure")
        await ui.idle()
        await ui.submit("/undo")
        await ui.opens("ConfirmDialog")
        await ui.press("up", "enter")
        await ui.closes()
        await ui.until(lambda: "Undone" in str(ui.told), "undone")
        await ui.hides("planned failure")
        await ui.shows("BEFORE")
        ui.app.chat.editor.clear()
        session_id = ui.app.chat.session_id
    async with kedge(tmp_path, session_id=session_id) as ui:
        await ui.shows("BEFORE")
        assert "planned failure" not in ui.text
        await ui.submit("/redo")
        await ui.opens("ConfirmDialog")
        await ui.press("up", "enter")
        await ui.shows("BEFORE", "▌ fail me", "planned failure")


async def test_another_session_that_asks_is_named_with_what_it_asks_before_the_first_prompt_too(
    served: Home, tmp_path: Path
) -> None:
    prompt = "make it elsewhere"
    call = {"name": "bash", "input": {"command": "touch made", "description": "Make it"}}
    served.models.on({"tool_calls": json.dumps([call])}, {"text": "THE-END"}, prompt=prompt)
    async with kedge(tmp_path) as ui, await AsyncClient.connect(str(tmp_path)) as other:
        elsewhere = await other.create_session("Elsewhere [/here]")
        await other.submit(prompt, session_id=elsewhere.id, permissions="ask")
        await ui.until(lambda: "Elsewhere [/here]: needs you\nrun touch made" in ui.told, "who asks, and what")
        await ui.shows("Elsewhere [/here]: needs you", "run touch made")
        await other.cancel(session_id=elsewhere.id)


async def three_prompts(ui: UiDriver, served: Home, directory: Path) -> None:
    """Each prompt writes a file by a command; the second one also edits `shared.txt`."""
    (directory / "shared.txt").write_text("one\n")
    for name in ("first", "second", "third"):
        command = f"echo {name} > {name}.txt" + ("; echo two >> shared.txt" if name == "second" else "")
        call = json.dumps([{"name": "bash", "input": {"command": command}}])
        served.models.on({"tool_calls": call}, {"text": f"DONE-{name}"}, prompt=f"the {name} prompt")
        await ui.submit(f"the {name} prompt")
        await ui.shows(f"DONE-{name}")
        await ui.idle()


async def test_going_back_to_a_prompt_keeps_the_draft(served: Home, tmp_path: Path) -> None:
    async with kedge(tmp_path, (120, 40), mode="yolo") as ui:
        await three_prompts(ui, served, tmp_path)
        await ui.press("escape")
        await ui.shows("again to go back")
        await ui.press("escape")
        await ui.opens("RewindDialog")
        await ui.shows("the first prompt", "4 files", "3 files", "third.txt will be deleted")
        await ui.press("up")
        await ui.shows("second.txt will be deleted", "shared.txt will be changed")
        await ui.press("escape")
        await ui.closes()
        await ui.write("a draft")
        await ui.press("escape", "escape")
        assert ui.app.screen is ui.app.chat, "with a draft, Esc Esc does nothing"
        ui.app.chat.commands.run("/rewind")
        await ui.opens("RewindDialog")
        await ui.press("up", "enter")
        await ui.opens("ConfirmDialog")
        await ui.shows("“the second prompt”", "files and conversation", "files only", "conversation only")
        await ui.press("up", "up", "up", "enter")
        await ui.shows("Undone: 3 files changed")
        await ui.hides("DONE-second")
        assert ui.app.chat.editor.text == "the second prompt\n\na draft"
        assert sorted(path.name for path in tmp_path.glob("*.txt")) == ["first.txt", "shared.txt"]
        assert (tmp_path / "shared.txt").read_text() == "one\n"
        ui.app.chat.editor.clear()
        await ui.submit("/redo")
        await ui.opens("ConfirmDialog")
        await ui.press("up", "enter")
        await ui.shows("DONE-third")
        assert (tmp_path / "third.txt").exists()


async def test_files_and_conversation_go_back_alone_and_the_timeline_says_so(served: Home, tmp_path: Path) -> None:
    async with kedge(tmp_path, (120, 45), mode="yolo") as ui:
        await three_prompts(ui, served, tmp_path)
        await ui.submit("/rewind")
        await ui.opens("RewindDialog")
        await ui.press("up", "enter")
        await ui.opens("ConfirmDialog")
        await ui.press("up", "up", "enter")
        await ui.shows("Undone, files only: 3 files changed", "DONE-third")
        assert ui.app.chat.editor.text == ""
        assert not (tmp_path / "third.txt").exists()
        await ui.submit("/rewind")
        await ui.opens("RewindDialog")
        await ui.shows("no files")
        await ui.press("enter")
        await ui.opens("ConfirmDialog")
        await ui.shows("Go back in the conversation")
        await ui.press("up", "enter")
        await ui.hides("DONE-third")
        assert ui.app.chat.editor.text == "the third prompt"
        ui.app.chat.editor.clear()
        await ui.submit("/timeline")
        await ui.opens("TimelineDialog")
        await ui.shows("the first prompt", "bash  echo first > first.txt", "created   first.txt", "undone")
        await ui.shows("↶ Files went back to before “the second prompt”", "↶ Conversation went back")


async def test_sessions_of_all_directories_are_listed_with_their_state_and_one_is_opened(
    served: Home, tmp_path: Path
) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    write = json.dumps([{"name": "write", "input": {"path": "x", "content": "x"}}])
    served.models.on({"tool_calls": write}, prompt="write x there")
    async with await AsyncClient.connect(str(there)) as other:
        asking_one = await other.create_session("The one that asks")
        await other.call(
            "POST", "/agent", {"session_id": asking_one.id, "prompt": "write x there"}, type=dict[str, Any]
        )
        done_one = await other.create_session("The one that is done")
        run = await other.run(asking(text="DONE-THERE"), session_id=done_one.id)
        await run.wait()
        async with kedge(here, (120, 30)) as ui:
            await ui.submit(asking(text="HERE"))
            await ui.shows("HERE")
            await ui.idle()
            await ui.press("ctrl+s")
            await ui.opens("SessionDialog")
            await ui.until(lambda: len(lines(ui)) == 1 and "fake-model" in lines(ui)[0], "the model of the own one")
            await ui.press("tab")
            await ui.shows("Sessions of all directories", "The one that asks", "needs you", "there")
            await ui.until(
                lambda: len({line.index("just now") for line in lines(ui) if "just now" in line}) == 1, "in columns"
            )
            await ui.write("is done")
            await ui.until(lambda: len(lines(ui)) == 1, "filtered")
            await ui.press("ctrl+d")
            await ui.until(lambda: any("Open it first" in told for told in ui.told), "it is not deleted from here")
            await ui.press("enter")
            await ui.until(lambda: ui.app.next_launch is not None, "the interface moves")
            launch = ui.app.next_launch
            assert launch is not None
            assert (launch.directory, launch.session_id) == (str(there), done_one.id)
        async with kedge(there, session_id=launch.session_id) as ui:
            await ui.shows("DONE-THERE")
        gone = tmp_path / "gone"
        gone.mkdir()
        async with kedge(here) as ui:
            gone.rmdir()
            ui.app.open_elsewhere(str(gone), "x")
            await ui.shows("so its sessions cannot be opened")
        await other.call("POST", f"/agent/sessions/{asking_one.id}/cancel", type=dict[str, Any])
