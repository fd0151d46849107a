"""The real agent with real servers: permissions, the list of tools, questions, tasks, crashes."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path

import pytest

from kedge.config.errors import BadConfig, Problem
from kedge.config.schema import Config, McpServerConfig, McpToolsConfig
from kedge.mcp import servers as supervisor
from kedge.protocol.mcp import McpEvent
from kedge.protocol.messages import Delta
from kedge.protocol.requests import PermissionRequest, QuestionRequest
from kedge.protocol.runs import RunOptions
from kedge.tools.registry import TOOLS
from tests.agent.driver import Driver
from tests.mcp.odd import ALLOW, Odd, asked, calling, gone, place_of, result_of, until_ready, use
from tests.support.harness import Kedge
from tests.support.model_server import ModelServer
from tests.support.processes import is_alive


@pytest.fixture
def odd(tmp_path: Path) -> Odd:
    return Odd(tmp_path / "odd")


@pytest.fixture
async def driver(kedge: Kedge, model_server: ModelServer) -> AsyncGenerator[Driver]:
    async with Driver(kedge, model_server.base_url, tools=TOOLS) as driver:
        yield driver


def tools_of(model_server: ModelServer) -> list[list[str]]:
    return [[tool["function"]["name"] for tool in call.body.get("tools", [])] for call in model_server.calls]


async def test_a_call_needs_permission_and_what_a_server_claims_skips_no_question(driver: Driver, odd: Odd) -> None:
    use(driver, odd=odd.config())
    session = await driver.kedge.session()
    await driver.kedge.send(session, calling("mcp_odd_echo", text="done").replace("{}", '{"text": "hi"}'), "r")
    request = await asked(driver, PermissionRequest)
    assert request.tool == "mcp_odd_echo"
    assert (request.params["server"], request.params["tool"]) == ("odd", "echo")
    assert request.params["rules"] == request.params["always_rules"] == ["mcp_odd_echo"]
    await driver.kedge.engine.answer_permission(driver.kedge.workspace_id, request.id, "allow_session", by="test")
    assert (await driver.kedge.end("r")).text == "done"
    await driver.ask(calling("mcp_odd_echo"), session)  # the grant covers the tool
    await driver.ask(calling("mcp_odd_env"), session, permissions="deny")
    result = await result_of(driver, session)
    assert result.is_error
    assert result.metadata == {"refused": "unattended", "allow_rules": ["mcp_odd_env"]}
    assert odd.count("tools/call env") == 0


async def test_mode_plan_refuses_calls_and_asks_about_those_that_say_they_only_read(driver: Driver, odd: Odd) -> None:
    use(driver, odd=odd.config())
    session = await driver.kedge.session()
    planning = RunOptions(mode="plan", allow=("mcp_*",))
    await driver.ask(calling("mcp_odd_env"), session, options=planning)
    assert (await result_of(driver, session)).metadata == {"refused": "mode"}
    await driver.ask(calling("mcp_odd_echo"), session, options=planning)
    assert not (await result_of(driver, session)).is_error
    await driver.ask(calling("mcp_odd_echo"), session, options=RunOptions(mode="yolo", deny=("mcp_odd_*",)))
    assert odd.count("tools/call echo") == 2  # yolo comes before the rules
    await driver.ask(calling("mcp_odd_echo"), session, options=RunOptions(allow=("mcp_*",), deny=("mcp_odd_*",)))
    assert (await result_of(driver, session)).metadata == {"refused": "rule"} | {"rule": "mcp_odd_*"}


async def test_a_server_that_was_never_connected_delays_no_prompt_and_joins_the_list_once(
    driver: Driver, odd: Odd, tmp_path: Path, model_server: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = Odd(tmp_path / "slow")
    use(driver, odd=odd.config(), slow=slow.config("slow"))
    session = await driver.kedge.session()
    assert (await driver.ask('[[fake text="first"]]', session)).text == "first"
    assert slow.requests in ([], ["started"])
    await until_ready(driver, "odd")
    await driver.ask('[[fake text="second"]]', session)
    monkeypatch.setattr("kedge.agent.mcp_tools.JOIN_S", 0.0)  # the slow one is not waited for any more
    await driver.ask(calling("mcp_odd_echo"), session, options=ALLOW)
    first, second, *_, last = tools_of(model_server)
    assert first[-2:] == ["mcp_find", "mcp_call"]
    assert second == first  # both are to join together
    assert last[: len(first)] == first
    assert "mcp_odd_echo" in last
    await driver.ask('[[fake text="third"]]', session)
    assert tools_of(model_server)[-1] == last


async def test_the_first_request_has_the_tools_that_a_server_offered_last_before_it_answers(
    driver: Driver, odd: Odd, model_server: ModelServer
) -> None:
    use(driver, odd=odd.config())
    await driver.ask(calling("mcp_odd_echo"), options=ALLOW)
    await until_ready(driver, "odd")
    (odd.place / "slow").touch()
    await driver.agent.workspace_deleted(driver.kedge.workspace_id)  # as after a restart: nothing is in memory
    await driver.kedge.restart()
    use(driver, odd=odd.config(timeout_s=50.0, tools=McpToolsConfig(deny=("env",))))  # the same server
    session = await driver.kedge.session()
    assert (await driver.ask('[[fake text="first"]]', session)).text == "first"
    mine = [name for name in tools_of(model_server)[-1] if name.startswith("mcp_")]
    assert "mcp_odd_echo" in mine
    assert not {"mcp_odd_env", "mcp_find"} & set(mine)
    use(driver, odd=odd.config(args=(*odd.config().args, "another")))
    assert (await driver.ask('[[fake text="other"]]')).text == "other"
    mine = [name for name in tools_of(model_server)[-1] if name.startswith("mcp_")]
    assert mine == ["mcp_find", "mcp_call"]  # another program: nobody knows its tools


async def test_a_call_waits_for_the_connection_of_a_server_whose_tools_are_known(
    driver: Driver, odd: Odd, model_server: ModelServer
) -> None:
    use(driver, odd=odd.config())
    await driver.ask(calling("mcp_odd_echo"), options=ALLOW)
    await driver.agent.workspace_deleted(driver.kedge.workspace_id)
    session = await driver.kedge.session()
    await driver.ask(calling("mcp_odd_echo"), session, options=ALLOW)
    assert (await result_of(driver, session)).content == "None"
    lists = [names for names in tools_of(model_server) if "mcp_odd_echo" in names]
    assert lists[-1] == lists[-2]


async def test_a_search_waits_for_a_server_that_connects_for_the_first_time(driver: Driver, odd: Odd) -> None:
    use(driver, odd=odd.config())
    session = await driver.kedge.session()
    await driver.ask(calling("mcp_find", query="echo"), session)
    assert (await result_of(driver, session)).content.startswith("mcp_odd_echo: ")


async def test_the_list_of_a_session_stays_the_same_when_tools_come_and_go_also_after_a_restart(
    driver: Driver, odd: Odd, model_server: ModelServer
) -> None:
    use(driver, odd=odd.config())
    session = await driver.kedge.session()
    await driver.ask(calling("mcp_find", query="echo"), session)
    await driver.ask('[[fake text="second"]]', session)
    (odd.place / "more").touch()
    use(driver, odd=odd.config(timeout_s=50.0))  # another configuration: the server is started again
    await driver.kedge.restart()
    await driver.ask(calling("mcp_odd_echo"), session, options=ALLOW)
    lists = tools_of(model_server)
    assert "mcp_odd_echo" in lists[-1]
    assert lists[-1] == lists[-2] == lists[2]
    await driver.ask(calling("mcp_call", tool="mcp_odd_later", arguments={"text": "new"}), session, options=ALLOW)
    assert (await result_of(driver, session)).content == "new"
    use(driver)
    await driver.ask(calling("mcp_odd_echo"), session, options=ALLOW)
    result = await result_of(driver, session)
    assert result.is_error
    assert "not configured" in result.content


async def test_servers_are_used_where_only_the_caller_has_a_variable_of_the_configuration(
    driver: Driver, odd: Odd, model_server: ModelServer
) -> None:
    use(driver, odd=odd.config())

    def load_config(env: Mapping[str, str]) -> Config:
        if "MY_OWN_KEY" not in env:
            raise BadConfig([Problem("config.toml", 1, "providers.own.api_key", "MY_OWN_KEY is not set")])
        return driver.config

    driver.load_config = load_config
    session = await driver.kedge.session()
    env = {**driver.env, "MY_OWN_KEY": "k"}
    assert (await driver.ask('[[fake text="first"]]', session, env=env)).text == "first"
    await until_ready(driver, "odd")
    await driver.ask(calling("mcp_odd_echo"), session, env=env, permissions="allow")
    assert not (await result_of(driver, session)).is_error


async def test_many_tools_are_found_instead_of_listed_and_called_under_their_own_rules(
    driver: Driver, odd: Odd, model_server: ModelServer
) -> None:
    use(driver, odd=odd.config("many"))
    session = await driver.kedge.session()
    await driver.ask(calling("mcp_find", query="tool 77"), session)
    assert [name for name in tools_of(model_server)[-1] if name.startswith("mcp_")] == ["mcp_find", "mcp_call"]
    assert "mcp_odd_tool_77" in (await result_of(driver, session)).content.splitlines()[0]
    call = calling("mcp_call", tool="mcp_odd_tool_77", arguments={})
    await driver.ask(call, session, permissions="deny")
    metadata = (await result_of(driver, session)).metadata
    assert metadata is not None
    assert metadata["allow_rules"] == ["mcp_odd_tool_77"]
    await driver.ask(call, session, options=RunOptions(allow=("mcp_odd_tool_7*",)))
    assert (await result_of(driver, session)).content == "tool_77"


async def test_a_question_of_a_server_is_answered_after_a_restart_and_the_call_goes_on_with_its_state(
    driver: Driver, odd: Odd
) -> None:
    use(driver, odd=odd.config())
    session = await driver.kedge.session()
    await driver.kedge.send(session, calling("mcp_odd_ask", text="done"), "r", options=ALLOW)
    request = await asked(driver, QuestionRequest)
    assert [question["kind"] for question in request.questions] == ["text", "text"]
    assert "Who are you?" in request.questions[0]["question"]
    await driver.kedge.crash_and_start()
    again = await asked(driver, QuestionRequest)
    assert again.id == request.id
    kedge = driver.kedge
    await kedge.engine.answer_question(kedge.workspace_id, request.id, ["Ann", "nine"], by="test")
    await kedge.seen(lambda event: isinstance(event.payload, QuestionRequest) and event.payload.id != request.id)
    second = await asked(driver, QuestionRequest)  # the age is no number
    assert len(second.questions) == 1
    await kedge.crash_and_start()
    await kedge.engine.answer_question(kedge.workspace_id, second.id, ["9"], by="test")
    assert (await kedge.end("r")).text == "done"
    content = json.loads((await result_of(driver, session)).content)
    assert content == [{"who": {"action": "accept", "content": {"name": "Ann", "age": 9}}}, "state of {}"]
    assert odd.count("tools/call ask") == 2  # the call, and the same again with the answers


async def test_an_address_is_shown_whole_and_declined_where_nobody_can_answer(driver: Driver, odd: Odd) -> None:
    use(driver, odd=odd.config())
    session = await driver.kedge.session()
    await driver.kedge.send(session, calling("mcp_odd_address"), "r", options=ALLOW)
    request = await asked(driver, QuestionRequest)
    assert "https://example.com/" + "x" * 300 in request.questions[0]["question"]
    await driver.kedge.engine.answer_question(driver.kedge.workspace_id, request.id, [True], by="test")
    await driver.kedge.end("r")
    assert json.loads((await result_of(driver, session)).content)[0] == {"who": {"action": "accept"}}
    await driver.ask(calling("mcp_odd_ask"), session, options=ALLOW, permissions="deny")
    assert json.loads((await result_of(driver, session)).content)[0] == {"who": {"action": "decline"}}


async def test_a_legacy_server_asks_in_the_middle_of_a_call(driver: Driver, odd: Odd) -> None:
    use(driver, odd=odd.config("legacy"))
    session = await driver.kedge.session()
    await driver.kedge.send(session, calling("mcp_odd_ask"), "r", options=ALLOW)
    request = await asked(driver, QuestionRequest)
    await driver.kedge.engine.answer_question(driver.kedge.workspace_id, request.id, ["Bo", ""], by="test")
    await driver.kedge.end("r")
    assert json.loads((await result_of(driver, session)).content) == {"action": "accept", "content": {"name": "Bo"}}


async def test_a_task_is_followed_by_the_next_server_and_canceled_with_its_run(driver: Driver, odd: Odd) -> None:
    use(driver, odd=odd.config())
    session = await driver.kedge.session()
    await driver.kedge.send(session, calling("mcp_odd_task"), "r", options=ALLOW)
    await odd.noted("tasks/get t-1")
    await driver.kedge.crash_and_start()
    seen = odd.count("tasks/get t-1")
    await odd.noted("tasks/get t-1", seen + 2)
    (odd.place / "finish").touch()
    await driver.kedge.end("r")
    assert (await result_of(driver, session)).content == "the task is done"
    assert odd.count("tools/call task") == 1
    (odd.place / "finish").unlink()
    await driver.kedge.send(session, calling("mcp_odd_task"), "c", options=ALLOW)
    await odd.noted("tools/call task", 2)
    await odd.noted("tasks/get t-1", odd.count("tasks/get t-1") + 1)
    await driver.kedge.store.cancel_run(driver.kedge.workspace_id, "c")
    await odd.noted("tasks/cancel t-1")


async def test_a_running_call_is_reported_after_a_crash_and_never_repeated(driver: Driver, odd: Odd) -> None:
    use(driver, odd=odd.config())
    session = await driver.kedge.session()
    await driver.kedge.send(session, calling("mcp_odd_hang"), "r", options=ALLOW)
    await odd.noted("tools/call hang")
    await driver.kedge.crash_and_start()
    assert (await driver.kedge.end("r")).text == "done"
    result = await result_of(driver, session)
    assert result.metadata is not None
    assert result.metadata["interrupted"] is True
    assert odd.count("tools/call hang") == 1


async def test_a_cancel_tells_the_server(driver: Driver, odd: Odd) -> None:
    use(driver, odd=odd.config())
    session = await driver.kedge.session()
    await driver.kedge.send(session, calling("mcp_odd_hang"), "r", options=ALLOW)
    await odd.noted("tools/call hang")
    await driver.kedge.store.cancel_run(driver.kedge.workspace_id, "r")
    await driver.kedge.end("r")
    await odd.noted("notifications/cancelled")


async def test_a_server_that_dies_costs_its_call_and_is_started_again(
    driver: Driver, odd: Odd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "RETRY_S", (0.0, 0.0, 0.0, 0.0))
    use(driver, odd=odd.config())
    session = await driver.kedge.session()
    assert (await driver.ask(calling("mcp_odd_die"), session, options=ALLOW)).text == "done"
    result = await result_of(driver, session)
    assert result.is_error
    assert "it is all over" in result.content
    await driver.ask(calling("mcp_odd_echo"), session, options=ALLOW)
    assert not (await result_of(driver, session)).is_error
    assert odd.count("started") == 2


@pytest.mark.parametrize(("name", "is_error"), [("garbage", False), ("flood", True), ("big", False)])
async def test_odd_output_harms_nothing(driver: Driver, odd: Odd, name: str, is_error: bool) -> None:
    use(driver, odd=odd.config())
    session = await driver.kedge.session()
    assert (await driver.ask(calling(f"mcp_odd_{name}"), session, options=ALLOW)).text == "done"
    result = await result_of(driver, session)
    assert result.is_error == is_error
    if name == "garbage":
        (server,) = (await (await driver.agent.mcp()).service.describe(*place_of(driver))).servers
        assert server.skipped_lines == 2
    if name == "big":
        assert len(result.content) < 300_000
        assert "All of it is in" in result.content


async def test_a_server_that_never_answers_is_given_up_and_its_program_ended(driver: Driver, odd: Odd) -> None:
    use(driver, odd=odd.config(timeout_s=0.3))
    session = await driver.kedge.session()
    await driver.ask(calling("mcp_odd_hang"), session, options=ALLOW)
    assert "0.3 s" in (await result_of(driver, session)).content
    await odd.noted("notifications/cancelled")


async def test_processes_end_with_their_children_when_the_configuration_or_the_workspace_lets_go(
    driver: Driver, odd: Odd, tmp_path: Path
) -> None:
    other = Odd(tmp_path / "other")
    use(driver, odd=odd.config(), other=other.config())
    session = await driver.kedge.session()
    await driver.ask(calling("mcp_odd_spawn"), session, options=ALLOW)
    grandchild = int((await result_of(driver, session)).content)
    await other.noted("started")
    pid, other_pid = odd.pid, other.pid
    assert is_alive(grandchild)
    use(driver, other=other.config())
    await driver.ask('[[fake text="next"]]', session)
    await gone(pid, grandchild)
    assert is_alive(other_pid)  # it did not change
    await driver.agent.workspace_deleted(driver.kedge.workspace_id)
    await gone(other_pid)
    assert await driver.kedge.store.left_processes() == []


async def test_a_connection_that_is_given_up_while_it_begins_leaves_no_process(driver: Driver, odd: Odd) -> None:
    use(driver, odd=odd.config("slow"))
    await driver.ask('[[fake text="x"]]')
    await odd.noted("started")
    assert is_alive(odd.pid)
    await driver.agent.workspace_deleted(driver.kedge.workspace_id)
    await gone(odd.pid)
    assert await driver.kedge.store.left_processes() == []


async def test_a_server_that_grows_or_is_not_used_is_ended_and_comes_back_with_the_next_call(
    driver: Driver, odd: Odd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "TICK_S", 0.05)
    use(driver, odd=odd.config())
    session = await driver.kedge.session()
    await driver.ask(calling("mcp_odd_echo"), session, options=ALLOW)
    first = odd.pid
    with monkeypatch.context() as patch:
        patch.setattr(supervisor, "MAX_MEMORY_BYTES", 1024 * 1024)
        await driver.kedge.seen(
            lambda event: isinstance(event.payload, McpEvent) and "memory" in str(event.payload.error)
        )
        await gone(first)
    await driver.ask(calling("mcp_odd_echo"), session, options=ALLOW)
    assert not (await result_of(driver, session)).is_error
    second = odd.pid
    assert second != first
    monkeypatch.setattr(supervisor, "IDLE_S", 0.0)
    await driver.kedge.seen(lambda event: isinstance(event.payload, McpEvent) and event.payload.state == "idle")
    await gone(second)


async def test_the_environment_is_the_servers_and_the_configured_never_a_runs(driver: Driver, odd: Odd) -> None:
    use(driver, odd=odd.config(env={"EXTRA": "1"}))
    session = await driver.kedge.session()
    run_env = {**driver.env, "OF_THE_RUN": "secret", "KEDGE_TOKEN": "t"}
    await driver.ask(calling("mcp_odd_env"), session, options=ALLOW, env=run_env)
    env = json.loads((await result_of(driver, session)).content)
    assert env["EXTRA"] == "1"
    assert env["OPENAI_API_KEY"] == driver.env["OPENAI_API_KEY"]
    assert not {"OF_THE_RUN", "KEDGE_TOKEN"} & env.keys()


async def test_progress_is_live_output(driver: Driver, odd: Odd) -> None:
    use(driver, odd=odd.config())
    session = await driver.kedge.session()
    await driver.ask(calling("mcp_odd_progress"), session, options=ALLOW)
    deltas = [frame.event.payload for frame in driver.kedge.watcher.frames]
    shown = "".join(each.text for each in deltas if isinstance(each, Delta) and each.kind == "tool_output")
    assert shown == "1/3 working\n2/3 working\n3/3 working\n"


async def test_states_are_told_and_listed_and_a_server_can_be_restarted(driver: Driver, odd: Odd) -> None:
    use(driver, odd=odd.config(), off=odd.config(enabled=False), bad=McpServerConfig(command="no-such-program"))
    service, place = (await driver.agent.mcp()).service, place_of(driver)
    states = {server.name: server.state for server in (await service.describe(*place)).servers}
    assert states == {"odd": "idle", "off": "disabled", "bad": "idle"}
    assert odd.requests == []  # reading starts none
    await driver.ask('[[fake text="x"]]')
    await until_ready(driver, "odd")
    servers = {server.name: server for server in (await service.describe(*place)).servers}
    assert (servers["odd"].state, servers["bad"].state) == ("ready", "failed")
    assert "no-such-program" in (servers["bad"].error or "")
    assert servers["odd"].pid == odd.pid
    assert [tool.name for tool in servers["odd"].tools] == sorted(tool.name for tool in servers["odd"].tools)
    before = odd.pid
    await service.restart("odd", *place)
    await gone(before)
    await odd.noted("started", 2)
    told = [each.event.payload for each in driver.kedge.watcher.frames]
    states = [(event.name, event.state) for event in told if isinstance(event, McpEvent)]
    assert states.index(("odd", "starting")) < states.index(("odd", "ready"))
