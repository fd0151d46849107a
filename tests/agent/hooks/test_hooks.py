"""Hooks at work: real commands that get real events of runs, and what they decide."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kedge.config.schema import HookConfig, HooksConfig, PermissionsConfig
from kedge.protocol.requests import Answer, PermissionRequest
from kedge.tools.registry import TOOLS
from tests.agent.driver import KEY, Driver
from tests.support.harness import Kedge
from tests.support.model_plan import Plan, PlannedCall
from tests.support.model_server import ModelServer
from tests.support.processes import is_alive

FORMATTER = """
import json, pathlib, re, sys
file = pathlib.Path(json.load(sys.stdin)["tool_input"]["file_path"])
file.write_text(re.sub(" *= *", " = ", file.read_text()))
"""
TOUCH = PlannedCall("bash", {"command": "touch made"}, "call-1")


@pytest.fixture
async def driver(kedge: Kedge, model_server: ModelServer) -> AsyncGenerator[Driver]:
    env = {"OPENAI_BASE_URL": model_server.base_url, "OPENAI_API_KEY": KEY, "KEDGE_MODEL": "openai/tester"}
    env |= {"PATH": os.environ["PATH"], "KEDGE_TOKEN": "not-for-hooks"}
    async with Driver(kedge, model_server.base_url, tools=TOOLS, env=env) as driver:
        yield driver


def use(driver: Driver, *, mode: Any = "yolo", **hooks: HookConfig | tuple[HookConfig, ...]) -> None:
    listed = {event: each if isinstance(each, tuple) else (each,) for event, each in hooks.items()}
    config = msgspec.structs.replace(driver.config, hooks=HooksConfig(**listed))
    driver.config = msgspec.structs.replace(config, permissions=PermissionsConfig(mode=mode))


def hook(command: str, **fields: Any) -> HookConfig:
    return HookConfig(command=command, **fields)


def says(output: dict[str, Any], **fields: Any) -> HookConfig:
    return hook(f"cat > input.json; printf '%s' '{json.dumps(output)}'", **fields)


def decides(event: str, decision: str, **fields: Any) -> dict[str, Any]:
    return {"hookSpecificOutput": {"hookEventName": event, "permissionDecision": decision, **fields}}


def plans(*calls: PlannedCall) -> list[Plan]:
    return [*(Plan(text="", tool_calls=(call,)) for call in calls), Plan(text="done")]


def workspace(kedge: Kedge) -> Path:
    return kedge.data.parent / "workspace"


def given(kedge: Kedge) -> dict[str, Any]:
    return json.loads((workspace(kedge) / "input.json").read_text())


def sent(model_server: ModelServer, index: int = -1) -> str:
    return json.dumps(model_server.calls[index].body["messages"], ensure_ascii=False)


async def notices(driver: Driver) -> list[str]:
    return [each.message or "" for each in await driver.agent_events() if each.type == "notice"]


async def test_exit_code_2_denies_a_call_in_every_mode_and_the_model_learns_why(
    driver: Driver, kedge: Kedge, model_server: ModelServer
) -> None:
    use(driver, pre_tool_use=hook("cat > input.json; echo 'never touch' >&2; exit 2", matcher="Bash"))
    model_server.on(plans(TOUCH))
    session = await kedge.session()
    assert (await driver.ask("go", session)).text == "done"
    assert not (workspace(kedge) / "made").exists()
    result = (await kedge.results(session))[0]
    assert (result.is_error, (result.metadata or {})["refused"]) == (True, "hook")
    assert "never touch" in sent(model_server)
    assert any("never touch" in each for each in await notices(driver))
    event = given(kedge)
    assert (event["tool_name"], event["tool_input"]["command"]) == ("Bash", "touch made")
    assert (event["hook_event_name"], event["tool_use_id"]) == ("PreToolUse", "call-1")
    assert (event["permission_mode"], event["cwd"]) == ("bypassPermissions", str(workspace(kedge)))


@pytest.mark.parametrize(
    ("matcher", "name"), [("bash", "bash"), ("^bash$", "bash"), ("Bash|Edit", "Bash"), ("", "Bash")]
)
async def test_a_hook_is_told_the_name_that_its_matcher_uses(
    driver: Driver, kedge: Kedge, model_server: ModelServer, matcher: str, name: str
) -> None:
    use(driver, pre_tool_use=hook("cat > input.json", matcher=matcher))
    model_server.on(plans(TOUCH))
    await driver.ask("go")
    assert given(kedge)["tool_name"] == name
    assert (workspace(kedge) / "made").exists()


async def test_a_hook_for_another_tool_is_not_run(driver: Driver, kedge: Kedge, model_server: ModelServer) -> None:
    use(driver, pre_tool_use=hook("touch ran; exit 2", matcher="Read|Write"))
    model_server.on(plans(TOUCH))
    await driver.ask("go")
    assert sorted(path.name for path in workspace(kedge).iterdir()) == ["made"]


async def test_a_hook_rewrites_the_input_and_the_model_is_told(
    driver: Driver, kedge: Kedge, model_server: ModelServer
) -> None:
    use(driver, pre_tool_use=says(decides("PreToolUse", "allow", updatedInput={"command": "touch other"})))
    model_server.on(plans(TOUCH))
    session = await kedge.session()
    await driver.ask("go", session)
    assert (workspace(kedge) / "other").exists()
    assert not (workspace(kedge) / "made").exists()
    assert "touch other" in sent(model_server)
    assert ((await kedge.results(session))[0].metadata or {})["changed_input"]["command"] == "touch other"


async def test_a_rewritten_input_in_the_words_of_other_agents_is_judged_and_used(
    driver: Driver, kedge: Kedge, model_server: ModelServer
) -> None:
    elsewhere = workspace(kedge) / "b.txt"
    use(
        driver,
        mode="ask",
        pre_tool_use=says(decides("PreToolUse", "allow", updatedInput={"file_path": str(elsewhere)})),
    )
    model_server.on(plans(PlannedCall("write", {"path": "a.txt", "content": "x"})))
    assert (await driver.ask("go", permissions="deny")).text == "done"
    assert elsewhere.read_text() == "x"
    assert given(kedge)["tool_input"]["file_path"] == str(workspace(kedge) / "a.txt")


async def test_allow_replaces_a_question_but_neither_a_rule_nor_mode_plan(
    driver: Driver, kedge: Kedge, model_server: ModelServer
) -> None:
    allow = says(decides("PreToolUse", "allow"), matcher="Bash")
    use(driver, mode="ask", pre_tool_use=allow)
    model_server.on(plans(TOUCH), prompt="ask")
    assert (await driver.ask("ask", permissions="deny")).text == "done"
    assert (workspace(kedge) / "made").exists()
    (workspace(kedge) / "made").unlink()
    driver.config = msgspec.structs.replace(driver.config, permissions=PermissionsConfig(deny=("bash(touch *)",)))
    model_server.on(plans(TOUCH), prompt="denied")
    await driver.ask("denied", permissions="deny")
    assert not (workspace(kedge) / "made").exists()
    use(driver, mode="plan", pre_tool_use=allow)
    model_server.on(plans(TOUCH), prompt="plan")
    await driver.ask("plan")
    assert not (workspace(kedge) / "made").exists()


async def test_a_denial_wins_over_other_hooks_and_allow_rules(
    driver: Driver, kedge: Kedge, model_server: ModelServer
) -> None:
    allow, ask = says(decides("PreToolUse", "allow")), says(decides("PreToolUse", "ask"), timeout_s=9)
    use(driver, pre_tool_use=(allow, hook("exit 2"), ask))
    driver.config = msgspec.structs.replace(driver.config, permissions=PermissionsConfig(allow=("bash",)))
    model_server.on(plans(TOUCH))
    await driver.ask("go")
    assert not (workspace(kedge) / "made").exists()


async def test_ask_makes_a_question_of_what_is_allowed(driver: Driver, kedge: Kedge, model_server: ModelServer) -> None:
    use(driver, mode="auto-edit", pre_tool_use=says(decides("PreToolUse", "ask", permissionDecisionReason="sure?")))
    model_server.on(plans(PlannedCall("write", {"path": "a.txt", "content": "x"})))
    receipt = await kedge.send(await kedge.session(), "go")
    request = await kedge.asked()
    assert isinstance(request, PermissionRequest)
    assert "sure?" in request.params["label"]
    await kedge.store.answer(kedge.workspace_id, "permission", request.id, Answer(action="allow", by="tester"))
    assert (await kedge.end(receipt.run_id)).text == "done"
    assert (workspace(kedge) / "a.txt").read_text() == "x"


@pytest.mark.parametrize("permissions", ["allow", "deny"])
async def test_what_a_hook_asks_is_denied_in_a_run_that_asks_nobody(
    driver: Driver, kedge: Kedge, model_server: ModelServer, permissions: Any
) -> None:
    use(driver, pre_tool_use=says(decides("PreToolUse", "ask", permissionDecisionReason="sure?")))
    model_server.on(plans(TOUCH))
    assert (await driver.ask("go", permissions=permissions)).text == "done"
    assert not (workspace(kedge) / "made").exists()
    assert "sure?" in sent(model_server)


@pytest.mark.parametrize(("on_failure", "is_made"), [("ignore", True), ("block", False)])
@pytest.mark.parametrize("command", ["echo broken >&2; exit 1", "exec sleep 60", "echo '{not json'", "no-such-program"])
async def test_a_hook_that_fails_is_reported_and_blocks_if_it_should(
    driver: Driver, kedge: Kedge, model_server: ModelServer, command: str, on_failure: str, is_made: bool
) -> None:
    use(driver, pre_tool_use=hook(command, timeout_s=0.3 if "sleep" in command else 20, on_failure=on_failure))
    model_server.on(plans(TOUCH))
    assert (await driver.ask("go")).text == "done"
    assert (workspace(kedge) / "made").exists() == is_made
    assert any("did not work" in each for each in await notices(driver))


async def test_a_permission_request_hook_answers_for_the_person(
    driver: Driver, kedge: Kedge, model_server: ModelServer
) -> None:
    answer = {"hookSpecificOutput": {"hookEventName": "PermissionRequest", "decision": {"behavior": "allow"}}}
    use(driver, mode="ask", permission_request=says(answer, matcher="Bash"))
    model_server.on(plans(TOUCH), prompt="yes")
    assert (await driver.ask("yes")).text == "done"
    assert (workspace(kedge) / "made").exists()
    (workspace(kedge) / "made").unlink()
    denial = {"behavior": "deny", "message": "not today"}
    use(driver, mode="ask", permission_request=says({"hookSpecificOutput": {"decision": denial}}))
    model_server.on(plans(TOUCH), prompt="no")
    assert (await driver.ask("no")).text == "done"
    assert not (workspace(kedge) / "made").exists()
    assert "not today" in sent(model_server)


async def test_what_a_hook_says_after_a_call_reaches_the_model_and_people(
    driver: Driver, kedge: Kedge, model_server: ModelServer
) -> None:
    output: dict[str, Any] = {"decision": "block", "reason": "run the tests", "systemMessage": "look here"}
    output["hookSpecificOutput"] = {"hookEventName": "PostToolUse", "additionalContext": "a fact"}
    use(driver, post_tool_use=says(output, matcher="Bash"))
    model_server.on(plans(TOUCH))
    session = await kedge.session()
    await driver.ask("go", session)
    assert "run the tests" in sent(model_server)
    assert "a fact" in sent(model_server)
    assert "run the tests" not in (await kedge.results(session))[0].content, "a result that is stored never changes"
    assert {"look here"} <= set(await notices(driver))
    assert given(kedge)["tool_response"]["interrupted"] is False
    model_server.on([Plan(text="again")], prompt="later")
    await driver.ask("later", session)
    assert "run the tests" in sent(model_server), "later requests are the same"


async def test_a_formatter_after_an_edit_is_undone_with_it_and_the_next_edit_works(
    driver: Driver, kedge: Kedge, model_server: ModelServer
) -> None:
    formatter = workspace(kedge).parent / "format.py"
    formatter.write_text(FORMATTER)
    use(driver, post_tool_use=hook(f"python3 {formatter}", matcher="Edit|Write"))
    write = PlannedCall("write", {"path": "b.py", "content": "y=2\nz=3\n"})
    edit = PlannedCall("edit", {"path": "b.py", "old_string": "y = 2", "new_string": "y=4"})
    again = PlannedCall("write", {"path": "b.py", "content": "w=5\n"})
    model_server.on(plans(write, edit, again))
    session = await kedge.session()
    assert (await driver.ask("go", session)).text == "done"
    assert [result.is_error for result in await kedge.results(session)] == [False, False, False]
    assert (workspace(kedge) / "b.py").read_text() == "w = 5\n"
    assert "+y = 2" in sent(model_server)
    await kedge.engine.undos.undo(kedge.workspace_id, session)
    assert not (workspace(kedge) / "b.py").exists()


async def test_a_blocked_prompt_fails_its_run_and_no_model_ever_sees_it(
    driver: Driver, kedge: Kedge, model_server: ModelServer
) -> None:
    use(driver, user_prompt_submit=hook("grep -q secret && { echo 'no secrets' >&2; exit 2; }; exit 0"))
    session = await kedge.session()
    end = await driver.ask("the secret is 42", session)
    assert end.error is not None
    assert "no secrets" in end.error
    assert end.code == "hook_blocked"
    assert not model_server.calls
    model_server.on([Plan(text="hello")], prompt="hi")
    assert (await driver.ask("hi", session)).text == "hello"
    assert "42" not in sent(model_server)


async def test_hooks_add_context_to_the_first_prompt_of_a_session_and_to_each_prompt(
    driver: Driver, kedge: Kedge, model_server: ModelServer
) -> None:
    use(
        driver, session_start=hook("echo started by $KEDGE_HOOK_EVENT"), user_prompt_submit=hook("echo today is monday")
    )
    session = await kedge.session()
    model_server.on([Plan(text="one")], prompt="first")
    await driver.ask("first", session)
    assert sent(model_server).count("started by SessionStart") == 1
    assert sent(model_server).count("today is monday") == 1
    model_server.on([Plan(text="two")], prompt="second")
    await driver.ask("second", session)
    assert sent(model_server).count("started by SessionStart") == 1
    assert sent(model_server).count("today is monday") == 2


async def test_a_stop_hook_lets_the_run_go_on_for_a_bounded_number_of_rounds(
    driver: Driver, kedge: Kedge, model_server: ModelServer
) -> None:
    use(driver, stop=hook("cat >> rounds; echo 'the tests fail' >&2; exit 2"))
    model_server.on([Plan(text="an answer")])
    assert (await driver.ask("go")).text
    assert len(model_server.calls) == 6
    rounds = [json.loads(line) for line in (workspace(kedge) / "rounds").read_text().splitlines()]
    assert [each["stop_hook_active"] for each in rounds] == [False, True, True, True, True]
    assert rounds[0]["last_assistant_message"] == "an answer"
    assert sent(model_server).count("the tests fail") == 5


async def test_a_hook_can_end_the_run(driver: Driver, kedge: Kedge, model_server: ModelServer) -> None:
    use(driver, pre_tool_use=says({"continue": False, "stopReason": "enough"}))
    model_server.on(plans(TOUCH))
    end = await driver.ask("go")
    assert "enough" in (end.error or "")
    assert not (workspace(kedge) / "made").exists()


async def test_observers_see_the_end_of_a_run_and_a_question_to_a_person(
    driver: Driver, kedge: Kedge, model_server: ModelServer
) -> None:
    fifo = workspace(kedge) / "told"
    os.mkfifo(fifo)
    use(driver, mode="ask", run_complete=hook("cat > end.json"), notification=hook("cat > told"))
    model_server.on(plans(TOUCH))
    receipt = await kedge.send(await kedge.session(), "go")
    told = json.loads(await asyncio.to_thread(fifo.read_text))
    assert (told["notification_type"], "touch made" in told["message"]) == ("permission_prompt", True)
    request = await kedge.asked()
    await kedge.store.answer(kedge.workspace_id, "permission", request.id, Answer(action="allow", by="tester"))
    await kedge.end(receipt.run_id)
    end = json.loads((workspace(kedge) / "end.json").read_text())
    assert (end["state"], end["last_assistant_message"]) == ("completed", "done")


async def test_hooks_run_for_the_calls_and_the_end_of_a_sub_agent(
    driver: Driver, kedge: Kedge, model_server: ModelServer
) -> None:
    use(driver, pre_tool_use=hook("cat >> calls", matcher="LS"), subagent_stop=hook("cat > ended"))
    model_server.on(plans(PlannedCall("ls", {"path": "."})), prompt="look around")
    model_server.on(plans(PlannedCall("agent", {"prompt": "look around", "title": "look"})), prompt="go")
    session = await kedge.session()
    await driver.ask("go", session)
    call, end = (json.loads((workspace(kedge) / name).read_text()) for name in ("calls", "ended"))
    assert call["session_id"] == end["session_id"] == session
    assert call["agent_id"] == end["agent_id"] != session
    assert end["hook_event_name"] == "SubagentStop"


async def test_a_hook_can_keep_the_conversation_from_being_summarized(
    driver: Driver, kedge: Kedge, model_server: ModelServer
) -> None:
    session = await kedge.session()
    await driver.ask("hello", session)
    use(driver, pre_compact=hook("cat > input.json; echo 'not now' >&2; exit 2", matcher="manual"))
    end = await driver.ask("", session, kind="summarize")
    assert "not now" in (end.error or "")
    assert given(kedge)["trigger"] == "manual"


async def test_a_hook_has_the_servers_environment_and_no_token(
    driver: Driver, kedge: Kedge, model_server: ModelServer
) -> None:
    use(driver, pre_tool_use=hook("env > env.txt"))
    model_server.on(plans(TOUCH))
    await driver.ask("go", env={**driver.env, "OF_THE_CALLER": "secret"})
    env = dict(line.split("=", 1) for line in (workspace(kedge) / "env.txt").read_text().splitlines())
    assert env["CLAUDE_PROJECT_DIR"] == env["KEDGE_PROJECT_DIR"] == str(workspace(kedge))
    assert (env["KEDGE_HOOK_EVENT"], env["KEDGE_TOOL"]) == ("PreToolUse", "bash")
    assert not env.keys() & {"KEDGE_TOKEN", "OF_THE_CALLER"}


async def test_a_cancel_ends_a_hook_and_all_that_it_started(
    driver: Driver, kedge: Kedge, model_server: ModelServer
) -> None:
    fifo = workspace(kedge) / "pids"
    os.mkfifo(fifo)
    use(driver, pre_tool_use=hook("sleep 60 & echo $$ $! > pids; wait"))
    model_server.on(plans(TOUCH))
    session = await kedge.session()
    receipt = await kedge.send(session, "go")
    pids = [int(pid) for pid in (await asyncio.to_thread(fifo.read_text)).split()]
    await kedge.cancel(session)
    assert (await kedge.end(receipt.run_id)).cancelled
    assert not any(map(is_alive, pids))
    assert not (workspace(kedge) / "made").exists()


async def test_an_interrupted_hook_runs_again_and_a_committed_decision_is_not_asked_for_again(
    driver: Driver, kedge: Kedge, model_server: ModelServer
) -> None:
    fifo = workspace(kedge) / "began"
    os.mkfifo(fifo)
    first = "cat >> calls; [ -e second ] && exit 0; touch second; echo $$ > began; exec sleep 60"
    use(driver, mode="ask", pre_tool_use=hook(first))
    model_server.on(plans(TOUCH))
    receipt = await kedge.send(await kedge.session(), "go")
    pid = int(await asyncio.to_thread(fifo.read_text))
    await kedge.crash_and_start()
    request = await kedge.asked()
    assert not is_alive(pid), "the next server ended it"
    await kedge.crash_and_start()
    request = await kedge.asked()
    await kedge.store.answer(kedge.workspace_id, "permission", request.id, Answer(action="allow", by="tester"))
    assert (await kedge.end(receipt.run_id)).text == "done"
    calls = [json.loads(line) for line in (workspace(kedge) / "calls").read_text().splitlines()]
    assert [call["tool_use_id"] for call in calls] == ["call-1", "call-1"]


async def test_hooks_after_a_call_run_again_if_a_crash_interrupted_them(
    driver: Driver, kedge: Kedge, model_server: ModelServer
) -> None:
    fifo = workspace(kedge) / "began"
    os.mkfifo(fifo)
    command = "cat >> calls; [ -e second ] && exit 0; touch second; echo > began; exec sleep 60"
    use(driver, post_tool_use=hook(command))
    model_server.on(plans(TOUCH))
    session = await kedge.session()
    receipt = await kedge.send(session, "go")
    await asyncio.to_thread(fifo.read_text)
    await kedge.crash_and_start()
    assert (await kedge.end(receipt.run_id)).text == "done"
    calls = [json.loads(line) for line in (workspace(kedge) / "calls").read_text().splitlines()]
    assert [call["tool_use_id"] for call in calls] == ["call-1", "call-1"]
    assert [result.is_error for result in await kedge.results(session)] == [False], "the call itself ran once"


# The fields of Codex's schemas (`additionalProperties` is false there): all of them are required but the last two.
COMMON = {"session_id", "transcript_path", "cwd", "hook_event_name", "model"}
OF_TURNS = COMMON | {"permission_mode", "turn_id"}
FIELDS = {
    "SessionStart": COMMON | {"permission_mode", "source"},
    "UserPromptSubmit": OF_TURNS | {"prompt"},
    "PreToolUse": OF_TURNS | {"tool_name", "tool_input", "tool_use_id"},
    "PermissionRequest": OF_TURNS | {"tool_name", "tool_input"},
    "PostToolUse": OF_TURNS | {"tool_name", "tool_input", "tool_use_id", "tool_response"},
    "Stop": OF_TURNS | {"stop_hook_active", "last_assistant_message"},
}


async def test_each_event_has_the_fields_of_the_format_and_no_others(
    driver: Driver, kedge: Kedge, model_server: ModelServer
) -> None:
    each = hook("cat > $KEDGE_HOOK_EVENT.json")
    names = {"session_start", "user_prompt_submit", "pre_tool_use", "permission_request", "post_tool_use", "stop"}
    use(driver, mode="ask", **dict.fromkeys(names, each))
    model_server.on(plans(TOUCH))
    receipt = await kedge.send(await kedge.session(), "go")
    request = await kedge.asked()
    await kedge.store.answer(kedge.workspace_id, "permission", request.id, Answer(action="allow", by="tester"))
    await kedge.end(receipt.run_id)
    for event, fields in FIELDS.items():
        sent = json.loads((workspace(kedge) / f"{event}.json").read_text())
        assert sent.keys() == fields
        assert (sent["hook_event_name"], sent["permission_mode"]) == (event, "default")


async def test_a_plugin_brings_hooks_that_find_its_files(
    driver: Driver, kedge: Kedge, model_server: ModelServer, tmp_path: Path
) -> None:
    root = tmp_path / "my plugin"
    (root / "hooks").mkdir(parents=True)
    (root / ".claude-plugin").mkdir()
    (root / ".claude-plugin" / "plugin.json").write_text('{"name": "guard"}')
    (root / "guard.sh").write_text("echo 'says the plugin' >&2; exit 2")
    command = {"type": "command", "command": 'sh "${CLAUDE_PLUGIN_ROOT}"/guard.sh'}
    listed = {"PreToolUse": [{"matcher": "Bash", "hooks": [command]}], "Unknown": [{"hooks": [command]}]}
    (root / "hooks" / "hooks.json").write_text(json.dumps({"description": "d", "hooks": listed}))
    driver.config = msgspec.structs.replace(driver.config, plugins=(str(root),))
    model_server.on(plans(TOUCH))
    await driver.ask("go", permissions="allow")
    assert not (workspace(kedge) / "made").exists()
    assert "says the plugin" in sent(model_server)
