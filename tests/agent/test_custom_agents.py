"""Sub-agents that files define: chosen by name, with their own prompt, model and tools; writing only if configured."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from kedge.config.schema import AgentConfig, Config, ModelConfig, PermissionsConfig, ProviderConfig
from kedge.protocol.requests import PermissionRequest
from kedge.protocol.runs import RunOptions
from kedge.tools.registry import TOOLS
from tests.agent.driver import Driver
from tests.agent.test_tool_calls import call, results, rounds
from tests.support.harness import Kedge
from tests.support.model_plan import Plan
from tests.support.model_server import ModelServer


@pytest.fixture
def workspace(kedge: Kedge) -> Path:
    return kedge.data.parent / "workspace"


@pytest.fixture
async def driver(kedge: Kedge, model_server: ModelServer, workspace: Path) -> AsyncGenerator[Driver]:
    async with Driver(kedge, model_server.base_url, tools=TOOLS) as driver:
        driver.config = Config(agent=AgentConfig(titles=False), trusted=(str(workspace),))
        yield driver


def write_agent(workspace: Path, name: str, prompt: str, **fields: str) -> None:
    path = workspace / ".claude/agents" / f"{name}.md"
    path.parent.mkdir(parents=True, exist_ok=True)
    fields = {"name": name, "description": f"Does {name}.", **fields}
    path.write_text("\n".join(["---", *(f"{key}: {value}" for key, value in fields.items()), "---", prompt]))


def let_write(driver: Driver, *names: str, mode: Any = "yolo") -> None:
    agent = replace(driver.config.agent, writers=names)
    driver.config = replace(driver.config, agent=agent, permissions=PermissionsConfig(mode=mode))


def requests_of(model_server: ModelServer, system: str) -> list[dict[str, Any]]:
    bodies = [each.body for each in model_server.calls]
    return [body for body in bodies if system in body["messages"][0]["content"]]


def names_of(body: dict[str, Any]) -> set[str]:
    return {tool["function"]["name"] for tool in body["tools"]}


async def test_an_agent_is_chosen_by_name_and_has_its_own_prompt(
    driver: Driver, model_server: ModelServer, workspace: Path, kedge: Kedge
) -> None:
    write_agent(workspace, "reviewer", "You are the REVIEWER of this test.", tools="Read, Grep, Task")
    write_agent(workspace, "writer", "You are the WRITER of this test.")
    model_server.on(rounds([call("agent", prompt="look at a.py", agent="reviewer")]), prompt="go")
    model_server.on([Plan(text="it is fine")], system="REVIEWER")
    session = await kedge.session()
    assert (await driver.ask("go", session)).error is None
    (result,) = await results(driver, session)
    assert result.content == "it is fine"
    (child,) = requests_of(model_server, "REVIEWER")
    assert names_of(child) == {"view", "grep"}
    assert "Your last message is your whole answer" in child["messages"][0]["content"]
    tool = next(t["function"] for t in model_server.calls[0].body["tools"] if t["function"]["name"] == "agent")
    assert tool["parameters"]["properties"]["agent"]["enum"] == ["", "reviewer", "writer"]
    assert "- reviewer: (only reads) Does reviewer." in tool["description"]
    let_write(driver, "writer")
    await driver.ask("once more")
    tool = next(t["function"] for t in model_server.calls[-1].body["tools"] if t["function"]["name"] == "agent")
    assert "- writer: (can change files) Does writer." in tool["description"]


async def test_without_a_name_it_is_the_general_one_that_only_reads(
    driver: Driver, model_server: ModelServer, workspace: Path
) -> None:
    write_agent(workspace, "reviewer", "You are the REVIEWER of this test.")
    let_write(driver, "*")
    model_server.on(rounds([call("agent", prompt="look")]), prompt="go")
    await driver.ask("go")
    child = requests_of(model_server, "You are a sub-agent of Kedge")[0]
    assert not names_of(child) & {"edit", "write", "bash", "agent"}


async def test_a_file_that_asks_for_editing_does_not_get_it_by_itself(
    driver: Driver, model_server: ModelServer, workspace: Path
) -> None:
    write_agent(workspace, "fixer", "You are the FIXER of this test.", tools="Read, Edit, Bash, Write")
    model_server.on(rounds([call("agent", prompt="fix it", agent="fixer")]), prompt="go")
    await driver.ask("go")
    assert names_of(requests_of(model_server, "FIXER")[0]) == {"view"}


async def test_a_writer_changes_files_and_an_undo_of_its_parent_takes_them_back(
    driver: Driver, model_server: ModelServer, workspace: Path, kedge: Kedge
) -> None:
    write_agent(workspace, "fixer", "You are the FIXER of this test.", tools="Read, Edit, Bash, Write")
    let_write(driver, "fixer")
    (workspace / "a.txt").write_text("before")
    edit = call("bash", command="printf after > a.txt")
    model_server.on(rounds([call("write", path="b.txt", content="new"), edit], text="fixed"), system="FIXER")
    model_server.on(rounds([call("agent", prompt="fix it", agent="fixer")]), prompt="go")
    session = await kedge.session()
    assert (await driver.ask("go", session)).error is None
    assert ((workspace / "a.txt").read_text(), (workspace / "b.txt").read_text()) == ("after", "new")
    child = requests_of(model_server, "FIXER")[0]
    assert {"view", "edit", "multiedit", "write", "bash"} == names_of(child)
    rewound = await kedge.engine.undos.undo(kedge.workspace_id, session)
    assert {step.path for step in rewound.files} == {"a.txt", "b.txt"}
    assert (workspace / "a.txt").read_text() == "before"
    assert not (workspace / "b.txt").exists()


async def test_a_writer_asks_as_its_parent_does_and_in_plan_mode_writes_nothing(
    driver: Driver, model_server: ModelServer, workspace: Path, kedge: Kedge
) -> None:
    write_agent(workspace, "fixer", "You are the FIXER of this test.")
    let_write(driver, "fixer", mode="ask")
    model_server.on(rounds([call("write", path="b.txt", content="new")], text="fixed"), system="FIXER")
    model_server.on(rounds([call("agent", prompt="fix it", agent="fixer")]), prompt="go")
    await driver.ask("go plan", options=RunOptions(mode="plan"))
    assert not (workspace / "b.txt").exists()
    session = await kedge.session()
    receipt = await kedge.send(session, "go")
    request = await kedge.asked()
    assert isinstance(request, PermissionRequest)
    assert (request.session_id, request.run_id, request.path) == (session, receipt.run_id, str(workspace / "b.txt"))
    await kedge.engine.answer_permission(kedge.workspace_id, request.id, "allow", "test")
    assert (await kedge.end(receipt.run_id)).error is None
    assert (workspace / "b.txt").read_text() == "new"


async def test_a_writer_cannot_delegate(
    driver: Driver, model_server: ModelServer, workspace: Path, kedge: Kedge
) -> None:
    write_agent(workspace, "fixer", "You are the FIXER of this test.")
    let_write(driver, "*")
    model_server.on(rounds([call("agent", prompt="again", agent="fixer")], text="done"), system="FIXER")
    model_server.on(rounds([call("agent", prompt="fix it", agent="fixer")]), prompt="go")
    await driver.ask("go")
    bodies = requests_of(model_server, "FIXER")
    assert all(not names_of(body) & {"agent", "question", "skill"} for body in bodies)
    assert "There is no tool" in str(bodies[-1]["messages"])


async def test_writers_work_one_after_the_other(
    driver: Driver, model_server: ModelServer, workspace: Path, kedge: Kedge
) -> None:
    write_agent(workspace, "fixer", "You are the FIXER of this test.")
    let_write(driver, "*")
    model_server.on([Plan(text="done", gate="here")], system="FIXER")
    calls = [call("agent", prompt=f"part {number}", agent="fixer") for number in (1, 2)]
    model_server.on(rounds(calls), prompt="go")
    receipt = await kedge.send(await kedge.session(), "go")
    await model_server.until(lambda calls: any(each.held for each in calls))
    assert len(requests_of(model_server, "FIXER")) == 1
    model_server.release("here")
    assert (await kedge.end(receipt.run_id)).error is None
    assert len(requests_of(model_server, "FIXER")) == 2


async def test_canceling_the_parent_ends_its_writer(
    driver: Driver, model_server: ModelServer, workspace: Path, kedge: Kedge
) -> None:
    write_agent(workspace, "fixer", "You are the FIXER of this test.")
    let_write(driver, "*")
    model_server.on(rounds([call("bash", command="touch begun; sleep 600; touch ended")]), system="FIXER")
    model_server.on(rounds([call("agent", prompt="fix", agent="fixer")]), prompt="go")
    session = await kedge.session()
    receipt = await kedge.send(session, "go")
    await kedge.seen(lambda event: event.type == "run" and getattr(event.payload, "kind", "") == "agent")
    await kedge.seen(lambda event: "bash" in str(getattr(event.payload, "parts", "")))
    await kedge.cancel(session)
    end = await kedge.end(receipt.run_id)
    assert end.cancelled
    assert not (workspace / "ended").exists()


async def test_a_writer_spends_what_its_parent_has_left_and_the_parent_ends_at_its_limit(
    driver: Driver, model_server: ModelServer, workspace: Path, kedge: Kedge
) -> None:
    write_agent(workspace, "fixer", "You are the FIXER of this test.")
    let_write(driver, "fixer")
    prices = {"tester": ModelConfig(input_price=1.0, output_price=100.0)}
    driver.config = replace(driver.config, providers={"openai": ProviderConfig(models=prices)})
    spent = Plan(text="", input_tokens=0, output_tokens=4000)  # 40 cents
    touch = [dataclasses.replace(spent, tool_calls=(call("bash", command=f"touch {n}"),)) for n in "abc"]
    model_server.on(touch, system="FIXER")
    model_server.on([dataclasses.replace(spent, tool_calls=(call("agent", prompt="fix", agent="fixer"),))], prompt="go")
    end = await driver.ask("go", await kedge.session(), options=RunOptions(max_cost=1.0))
    assert end.code == "max_cost"
    assert end.usage is not None
    assert end.usage.cost == pytest.approx(1.2)
    assert [path.name for path in sorted(workspace.glob("?"))] == ["a", "b"]
    assert len(model_server.calls) == 3


async def test_a_model_of_its_own_is_used_and_a_short_name_of_another_agent_is_not(
    driver: Driver, model_server: ModelServer, workspace: Path
) -> None:
    write_agent(workspace, "large", "You are the LARGE of this test.", model="openai/other")
    write_agent(workspace, "short", "You are the SHORT of this test.", model="sonnet")
    calls = [call("agent", prompt="look", agent=name) for name in ("large", "short")]
    model_server.on(rounds(calls), prompt="go")
    assert (await driver.ask("go")).error is None
    assert requests_of(model_server, "LARGE")[0]["model"] == "other"
    assert requests_of(model_server, "SHORT")[0]["model"] == "tester"


async def test_an_unknown_name_is_an_error_that_lists_the_known_ones(
    driver: Driver, model_server: ModelServer, workspace: Path, kedge: Kedge
) -> None:
    write_agent(workspace, "reviewer", "You review.")
    model_server.on(rounds([call("agent", prompt="look", agent="revewer")]), prompt="go")
    session = await kedge.session()
    await driver.ask("go", session)
    (result,) = await results(driver, session)
    assert result.is_error
    assert "reviewer" in result.content


async def test_an_untrusted_directory_brings_no_agent(
    driver: Driver, model_server: ModelServer, workspace: Path
) -> None:
    write_agent(workspace, "reviewer", "You review.")
    driver.config = replace(driver.config, trusted=())
    await driver.ask("go")
    assert "reviewer" not in str(model_server.calls[-1].body)


async def test_a_prompt_may_name_its_tools(driver: Driver, model_server: ModelServer) -> None:
    await driver.ask("go", options=RunOptions(tools=("view", "ls", "nonsense")))
    assert names_of(model_server.calls[-1].body) == {"view", "ls"}
