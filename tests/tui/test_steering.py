"""Prompts that are sent while a run works: queued, sent into the turn, or interrupting it; and the queue's dialog."""

from __future__ import annotations

from pathlib import Path

from kedge.client import AsyncClient
from kedge.protocol.runs import Run
from kedge.tui.dialogs.queue import QueueDialog
from tests.e2e.home import Home, asking
from tests.tui.ui_driver import UiDriver, kedge


async def busy(ui: UiDriver, gate: str) -> None:
    await ui.submit(asking(gate=gate, text="FIRST"))
    await ui.until(lambda: ui.app.chat.session and ui.app.chat.session.active, "the first prompt runs")


async def queue(ui: UiDriver, *texts: str) -> None:
    for text in texts:
        await ui.submit(asking(text=text))
    await ui.until(lambda: len(queued(ui)) == len(texts), "all are queued")


def queued(ui: UiDriver) -> list[str]:
    session = ui.app.chat.session
    return [word_of(run) for run in session.queue] if session else []


def word_of(run: Run) -> str:
    return run.prompt.rpartition("text=")[2].removesuffix("]]")


def find(ui: UiDriver, word: str) -> Run:
    session = ui.app.chat.session
    assert session is not None
    return next(run for run in session.runs.values() if word_of(run) == word)


async def test_enter_queues_one_key_joins_the_turn_and_hints_say_so(served: Home, tmp_path: Path) -> None:
    async with kedge(tmp_path, (110, 30)) as ui:
        await busy(ui, "join")
        await queue(ui, "QUEUED")
        await ui.write(asking(text="STEERED"))
        await ui.shows("Enter queue · Ctrl+L send now · Ctrl+F interrupt")
        await ui.press("ctrl+l")
        await ui.until(lambda: queued(ui) == ["QUEUED", "STEERED"], "it waits for the next step")
        await ui.shows("↳")
        served.models.release("join")
        await ui.shows("QUEUED", "STEERED")
        await ui.idle()
        assert find(ui, "STEERED").merged_into == find(ui, "FIRST").run_id
        assert find(ui, "QUEUED").merged_into is None


async def test_a_prompt_joins_a_turn_that_was_sent_in_another_mode(served: Home, tmp_path: Path) -> None:
    async with kedge(tmp_path) as ui, await AsyncClient.connect(str(tmp_path), name="other") as other:
        session_id = (await other.create_session()).id
        ui.app.chat.open_session(session_id)
        await ui.until(lambda: ui.app.chat.session_id == session_id, "the session is open")
        body = {"session_id": session_id, "prompt": asking(gate="other", text="FIRST"), "permissions": "ask"}
        await other.call("POST", "/agent", body, type=dict[str, object])
        await ui.until(lambda: ui.app.chat.session and ui.app.chat.session.active, "it runs")
        await ui.write(asking(text="STEERED"))
        await ui.press("ctrl+l")
        await ui.until(lambda: queued(ui) == ["STEERED"], "it waits for the next step")
        served.models.release("other")
        await ui.idle()
        assert find(ui, "STEERED").merged_into == find(ui, "FIRST").run_id


async def test_one_key_interrupts_and_runs_next(served: Home, tmp_path: Path) -> None:
    async with kedge(tmp_path) as ui:
        await busy(ui, "interrupted")
        await queue(ui, "QUEUED")
        await ui.write(asking(text="NOW"))
        await ui.press("ctrl+f")
        await ui.shows("NOW", "QUEUED")
        await ui.idle()
        assert find(ui, "FIRST").state == "cancelled"
        assert find(ui, "NOW").state == find(ui, "QUEUED").state == "completed"
        assert ui.text.index("NOW") < ui.text.index("QUEUED")


async def test_without_a_run_the_keys_just_send(served: Home, tmp_path: Path) -> None:
    async with kedge(tmp_path) as ui:
        for key, text in (("ctrl+l", "ONE"), ("ctrl+f", "TWO")):
            await ui.write(asking(text=text))
            await ui.press(key)
            await ui.shows(text)
            await ui.idle()
        await ui.press("ctrl+l")
        await ui.shows("no queued prompt")


async def test_with_an_empty_prompt_the_first_of_the_queue_is_sent(served: Home, tmp_path: Path) -> None:
    async with kedge(tmp_path) as ui:
        await busy(ui, "empty")
        await queue(ui, "ONE", "TWO")
        await ui.press("ctrl+l")
        await ui.until(lambda: find(ui, "ONE").on_busy == "steer", "it is sent into the turn")
        served.models.release("empty")
        await ui.idle()
        assert find(ui, "ONE").merged_into == find(ui, "FIRST").run_id


async def test_the_dialog_moves_sends_and_removes_and_follows_other_clients(served: Home, tmp_path: Path) -> None:
    async with kedge(tmp_path) as ui, await AsyncClient.connect(str(tmp_path), name="other") as other:
        await busy(ui, "dialog")
        await queue(ui, "A", "B", "C", "D")
        await ui.press("ctrl+t")
        await ui.opens("QueueDialog")
        await ui.press("shift+down")
        await ui.until(lambda: queued(ui) == ["B", "A", "C", "D"], "A is behind B")
        await ui.press("J")
        await ui.until(lambda: queued(ui) == ["B", "C", "A", "D"], "the same prompt moves on")
        await ui.press("K")
        await ui.until(lambda: queued(ui) == ["B", "A", "C", "D"], "and back")
        await ui.press("d")
        await ui.until(lambda: queued(ui) == ["B", "C", "D"], "A is gone")
        dialog = ui.app.screen
        assert isinstance(dialog, QueueDialog)
        session_id = ui.app.chat.session_id
        await other.call(
            "POST",
            f"/agent/sessions/{session_id}/prompts/move",
            {"run_id": find(ui, "D").run_id, "before": find(ui, "B").run_id},
            type=dict[str, object],
        )
        await ui.until(lambda: [word_of(run) for run in dialog._queue] == ["D", "B", "C"], "as the other client has it")
        await ui.press("home", "s")
        await ui.until(lambda: find(ui, "D").on_busy == "steer", "D is sent now")
        await ui.press("end", "i")
        await ui.closes()
        await ui.idle()
        assert find(ui, "FIRST").state == "cancelled"


async def test_an_edited_prompt_returns_to_the_editor_even_if_it_was_the_last(served: Home, tmp_path: Path) -> None:
    async with kedge(tmp_path) as ui:
        await busy(ui, "edited")
        await queue(ui, "EDIT-ME")
        await ui.press("ctrl+t")
        await ui.opens("QueueDialog")
        await ui.press("enter")
        await ui.closes()
        await ui.until(lambda: "EDIT-ME" in ui.app.chat.editor.text, "it is in the editor")
        served.models.release("edited")
        await ui.idle()
