"""The mode in the interface: it holds for the run that works, `yolo` asks once, and a plan ends with a choice."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from kedge.client import AsyncClient
from kedge.protocol.runs import Run
from kedge.tui import mode_switch
from kedge.tui.dialogs import dialog, docked
from kedge.tui.dialogs.plan import GO_ON_PROMPT
from tests.e2e.home import Home, asking
from tests.tui import offline_app
from tests.tui.ui_driver import UiDriver, kedge, screen_text

PLAN = "1. Change a. 2. Test it."


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dialog, "QUIET_S", 0.0)
    monkeypatch.setattr(docked, "HOLD_S", 0.0)
    monkeypatch.setattr(mode_switch, "SETTLE_S", 0.0)


def runs_of(ui: UiDriver) -> list[Run]:
    session = ui.app.chat.session
    return sorted(session.runs.values(), key=lambda run: run.seq) if session else []


async def set_limit(ui: UiDriver) -> None:
    ui.app.settings = ui.app.settings._replace(has_cost_limit=True)


async def make_plan(ui: UiDriver) -> None:
    await ui.submit("/mode plan")
    await ui.shows("  plan  openai")
    await ui.submit(asking(text=PLAN))
    await ui.shows("Go on with this plan?")


async def test_a_switch_holds_for_the_run_that_works(served: Home, tmp_path: Path) -> None:
    write = json.dumps([{"name": "write", "input": {"path": "made", "content": "x"}}])
    served.models.on({"tool_calls": write}, {"text": "THE-END"}, prompt="write it")
    async with kedge(tmp_path) as ui:
        await ui.submit("write it")
        await ui.opens("PermissionDialog")
        await ui.press("shift+tab")
        await ui.shows("THE-END", "Answered by the new mode: allowed")
        assert (tmp_path / "made").read_text() == "x"
        assert [run.mode for run in runs_of(ui)] == ["auto-edit"]


async def test_modes_on_the_way_to_another_one_allow_nothing(
    served: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mode_switch, "SETTLE_S", 30.0)
    write = json.dumps([{"name": "write", "input": {"path": "never", "content": "x"}}])
    served.models.on({"tool_calls": write}, {"text": "THE-END"}, prompt="write never")
    async with kedge(tmp_path) as ui:
        await ui.submit("write never")
        await ui.opens("PermissionDialog")
        await ui.press("shift+tab", "shift+tab", "shift+tab")  # auto-edit, yolo (auto needs a limit), plan
        await ui.shows("  plan (running: ask)")
        await ui.press("a")
        await ui.shows("THE-END")


async def test_a_switch_by_another_client_is_shown(served: Home, tmp_path: Path) -> None:
    async with kedge(tmp_path) as ui, await AsyncClient.connect(str(tmp_path), name="other") as other:
        await ui.submit(asking(gate="other-mode", text="THE-END"))
        await ui.until(lambda: runs_of(ui) and runs_of(ui)[0].state == "running", "it runs")
        await other.call("POST", f"/runs/{runs_of(ui)[0].run_id}/mode", {"mode": "plan"}, type=dict[str, object])
        await ui.shows("ask (running: plan)")
        served.models.release("other-mode")
        await ui.idle()


async def test_yolo_asks_once(served: Home, tmp_path: Path) -> None:
    async with kedge(tmp_path) as ui:
        await ui.submit("/mode yolo")
        await ui.opens("ConfirmDialog")
        await ui.press("enter")  # the harmless choice
        await ui.shows("  ask  openai")
        assert ui.app.chat.mode == "ask"
        await ui.submit("/mode yolo")
        await ui.opens("ConfirmDialog")
        assert ui.app.chat.mode == "ask"
        await ui.press("up", "enter")
        await ui.shows("  yolo  openai")
        await ui.submit("/mode ask")
        await ui.shows("  ask  openai")
        await ui.submit("/mode yolo")
        await ui.shows("  yolo  openai")
        assert ui.app.screen is ui.app.chat


async def test_yolo_by_key_asks_too(served: Home, tmp_path: Path) -> None:
    async with kedge(tmp_path) as ui:
        await ui.press("shift+tab", "shift+tab")
        await ui.opens("ConfirmDialog")
        await ui.press("escape")
        await ui.shows("  auto-edit  openai")


async def test_auto_needs_a_limit_on_cost(served: Home, tmp_path: Path) -> None:
    async with kedge(tmp_path) as ui:
        await ui.submit("/mode auto")
        await ui.shows("agent.max_cost", "  ask  openai")
        await set_limit(ui)
        await ui.submit("/mode auto")
        await ui.shows("  auto  openai")


@pytest.mark.parametrize(("key", "mode"), [("a", "ask"), ("e", "auto-edit"), ("u", "auto")])
async def test_a_plan_is_approved_with_the_mode_to_go_on_in(served: Home, tmp_path: Path, key: str, mode: str) -> None:
    served.models.on({"text": "CARRIED-OUT"}, prompt=GO_ON_PROMPT)
    async with kedge(tmp_path) as ui:
        await set_limit(ui)
        await make_plan(ui)
        await ui.until(lambda: ui.app.chat.requests.plan and ui.app.chat.requests.plan.is_in_use, "it has the keys")
        await ui.press(key)
        await ui.hides("Go on with this plan?")
        await ui.idle()
        assert [(run.prompt, run.mode) for run in runs_of(ui)][1:] == [(GO_ON_PROMPT, mode)]
        assert ui.app.chat.mode == mode


async def test_a_plan_in_yolo_is_confirmed(served: Home, tmp_path: Path) -> None:
    async with kedge(tmp_path) as ui:
        await make_plan(ui)
        await ui.until(lambda: ui.app.chat.requests.plan and ui.app.chat.requests.plan.is_in_use, "it has the keys")
        await ui.press("y")
        await ui.opens("ConfirmDialog")
        await ui.press("enter")
        await ui.shows("Go on with this plan?")
        assert len(runs_of(ui)) == 1


async def test_planning_goes_on_with_a_remark(served: Home, tmp_path: Path) -> None:
    served.models.on({"text": "A better plan."}, prompt="without tests")
    async with kedge(tmp_path) as ui:
        await make_plan(ui)
        await ui.until(lambda: ui.app.chat.requests.plan and ui.app.chat.requests.plan.is_in_use, "it has the keys")
        await ui.press("k", *"without tests", "enter")
        await ui.shows("A better plan.", "Go on with this plan?")
        assert [(run.prompt, run.mode) for run in runs_of(ui)][1:] == [("without tests", "plan")]


async def test_typed_text_answers_no_plan(served: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dialog, "QUIET_S", 30.0)
    async with kedge(tmp_path) as ui:
        await make_plan(ui)
        await ui.press(*"eya")
        assert ui.app.chat.editor.text == "eya"
        await ui.press("f2")
        await ui.shows("Esc close")
        await ui.press("escape")
        await ui.hides("Go on with this plan?")
        assert ui.app.chat.editor.text == "eya"
        assert len(runs_of(ui)) == 1


async def test_a_closed_plan_is_shown_again_with_the_keys(served: Home, tmp_path: Path) -> None:
    async with kedge(tmp_path) as ui:
        await make_plan(ui)
        await ui.until(lambda: ui.app.chat.requests.plan and ui.app.chat.requests.plan.is_in_use, "it has the keys")
        await ui.press("escape")
        await ui.hides("Go on with this plan?")
        await ui.press("f2")
        await ui.shows("Go on with this plan?", "Esc close")
        await ui.press("right", "enter")
        await ui.hides("Go on with this plan?")
        await ui.idle()
        assert [(run.prompt, run.mode) for run in runs_of(ui)][1:] == [(GO_ON_PROMPT, "ask")]


async def test_a_plan_is_offered_again_after_a_restart_and_answered_once_by_two_windows(
    served: Home, tmp_path: Path
) -> None:
    served.models.on({"text": "CARRIED-OUT"}, prompt=GO_ON_PROMPT)
    async with kedge(tmp_path) as first:
        await make_plan(first)
        session_id = first.app.chat.session_id
    async with kedge(tmp_path, session_id=session_id) as one:
        await one.shows("Go on with this plan?")
        async with kedge(tmp_path, session_id=session_id) as two:
            await two.shows("Go on with this plan?")
            plan = runs_of(two)[0]
            assert await one.app.chat.go_on(plan, "ask", "")
            assert await two.app.chat.go_on(plan, "auto-edit", "")  # too late: nothing is sent
            await two.hides("Go on with this plan?")
            await one.idle()
            assert [run.mode for run in runs_of(one)] == ["plan", "ask"]


async def test_what_came_after_a_plan_ends_the_offer(served: Home, tmp_path: Path) -> None:
    async with kedge(tmp_path) as ui:
        await make_plan(ui)
        await ui.press("escape")
        await ui.submit(asking(text="A question's answer."))
        await ui.shows("A question's answer.", "Go on with this plan?")  # also in mode plan
        await ui.press("escape")
        await ui.submit("/mode ask")
        await ui.submit(asking(text="THE-END"))
        await ui.shows("THE-END")
        await ui.idle()
        await ui.hides("Go on with this plan?")


async def test_the_mode_stays_visible_in_a_narrow_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with offline_app.open_app(tmp_path, monkeypatch, (60, 24)) as (app, pilot):
        app.chat.mode = "auto-edit"
        workspace = app.workspace
        workspace.sessions["2"] = offline_app.stored_session("2", "A session with a title of some length that asks")
        workspace.requests["q"] = msgspec.structs.replace(offline_app.RUNNING, session_id="2")
        app.chat.draw()
        await pilot.pause()
        status = screen_text(app).splitlines()[-1]
        assert "auto-edit" in status
        assert "A session with" in status
