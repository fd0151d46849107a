"""How one run differs from what is configured: its limits, its system prompt, the form of its answer. And circles."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Any

import pytest

from kedge.agent import turn_state
from kedge.agent.output_schema import MAX_CORRECTIONS
from kedge.config.schema import AgentConfig, Config, ModelConfig, ProviderConfig
from kedge.protocol.runs import RunOptions
from kedge.tools.registry import TOOLS
from tests.agent.driver import Driver
from tests.agent.fake_tools import FakeTools
from tests.agent.test_tool_calls import call, results, rounds
from tests.support.harness import Kedge
from tests.support.model_plan import Plan
from tests.support.model_server import ModelServer

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


@pytest.fixture
def fake_tools() -> FakeTools:
    return FakeTools()


@pytest.fixture
async def driver(kedge: Kedge, model_server: ModelServer, fake_tools: FakeTools) -> AsyncGenerator[Driver]:
    async with Driver(kedge, model_server.base_url, tools=fake_tools.tools) as driver:
        yield driver


def system_of(body: dict[str, Any]) -> str:
    return body["messages"][0]["content"]


class TestLimits:
    async def test_a_run_over_its_steps_fails_and_keeps_what_it_did(
        self, driver: Driver, model_server: ModelServer, fake_tools: FakeTools
    ) -> None:
        model_server.on(rounds(*([call("poke", text=name)] for name in "abcd")))
        session = await driver.kedge.session()
        end = await driver.ask("go", session, options=RunOptions(max_steps=2))
        assert end.code == "max_steps"
        assert end.error is not None
        assert "2 steps" in end.error
        assert len(model_server.calls) == 2
        assert [result.content for result in await results(driver, session)] == ["a", "b"]
        model_server.on([Plan(text="on")], prompt="go on")
        assert (await driver.ask("go on", session)).text == "on"

    async def test_a_run_within_its_steps_ends_well(self, driver: Driver, model_server: ModelServer) -> None:
        model_server.on(rounds([call("poke", text="a")]))
        assert (await driver.ask("go", options=RunOptions(max_steps=2))).error is None

    async def test_the_configured_limit_holds_for_runs_without_one(
        self, driver: Driver, model_server: ModelServer
    ) -> None:
        driver.config = Config(agent=AgentConfig(titles=False, max_steps=1))
        model_server.on(rounds([call("poke", text="a")]))
        assert (await driver.ask("go")).code == "max_steps"
        assert (await driver.ask("go", options=RunOptions(max_steps=5))).error is None

    async def test_a_run_over_its_cost_fails(self, driver: Driver, model_server: ModelServer) -> None:
        priced = ModelConfig(input_price=1.0, output_price=100.0)
        driver.config = Config(
            agent=AgentConfig(titles=False), providers={"openai": ProviderConfig(models={"tester": priced})}
        )
        plan = Plan(text="", tool_calls=(call("poke", text="a"),), input_tokens=0, output_tokens=4000)
        model_server.on([plan, plan, plan])
        end = await driver.ask("go", options=RunOptions(max_cost=0.5))
        assert end.code == "max_cost"
        assert len(model_server.calls) == 2  # 40 cents, 80 cents
        assert end.usage.cost == pytest.approx(0.8)

    @pytest.mark.parametrize("is_option", [True, False])
    async def test_a_sub_agent_spends_only_what_is_left(
        self, driver: Driver, model_server: ModelServer, *, is_option: bool
    ) -> None:
        priced = ModelConfig(input_price=1.0, output_price=100.0)
        driver.config = Config(
            agent=AgentConfig(titles=False, max_cost=None if is_option else 0.5),
            providers={"openai": ProviderConfig(models={"tester": priced})},
        )
        spent = Plan(text="", input_tokens=0, output_tokens=4000)
        model_server.on([replace(spent, tool_calls=(call("helper", text="find it"),))], prompt="go")
        model_server.on([replace(spent, tool_calls=(call("peek", text="a"),))] * 3, prompt="find it")
        end = await driver.ask("go", options=RunOptions(max_cost=0.5) if is_option else RunOptions())
        assert end.code == "max_cost"
        assert len(model_server.calls) == 2  # 40 cents each: the sub-agent had 10 left

    async def test_what_an_earlier_attempt_did_counts(
        self, kedge: Kedge, fake_tools: FakeTools, model_server: ModelServer
    ) -> None:
        model_server.on(rounds([call("poke", text="a")], [call("risk", text="b")], [call("poke", text="c")]))
        session = await kedge.session()
        async with Driver(kedge, model_server.base_url, tools=fake_tools.tools):
            receipt = await kedge.send(session, "go", options=RunOptions(max_steps=2))
            request = await kedge.asked()
            await kedge.restart()
        async with Driver(kedge, model_server.base_url, tools=fake_tools.tools):
            await kedge.engine.answer_permission(kedge.workspace_id, request.id, "allow", by="tester")
            assert (await kedge.end(receipt.run_id)).code == "max_steps"
        assert len(model_server.calls) == 2


class TestCircles:
    @pytest.mark.parametrize("circle", [["a"], ["a", "b"], ["a", "b", "c"]])
    async def test_the_same_calls_over_and_over_are_warned_of_and_then_ended(
        self, driver: Driver, model_server: ModelServer, circle: list[str]
    ) -> None:
        steps = [[call("poke", text=text)] for text in circle * 20]
        model_server.on(rounds(*steps))
        session = await driver.kedge.session()
        end = await driver.ask("go", session)
        assert end.code == "repeats"
        assert end.error is not None
        told = await results(driver, session)
        assert len(told) == turn_state.STOP_AT_REPEATS * len(circle)
        warned = ["same call" in result.content for result in told]
        assert warned.index(True) == turn_state.WARN_AT_REPEATS * len(circle) - 1
        assert all(warned[turn_state.WARN_AT_REPEATS * len(circle) - 1 :])

    async def test_calls_that_differ_are_no_circle(self, driver: Driver, model_server: ModelServer) -> None:
        model_server.on(rounds(*([call("poke", text=str(number))] for number in range(20))))
        session = await driver.kedge.session()
        assert (await driver.ask("go", session)).error is None
        assert not any("same call" in result.content for result in await results(driver, session))

    async def test_a_new_prompt_begins_anew(self, driver: Driver, model_server: ModelServer) -> None:
        model_server.on(rounds(*[[call("poke", text="a")]] * (turn_state.STOP_AT_REPEATS - 1)))
        session = await driver.kedge.session()
        assert (await driver.ask("go", session)).error is None
        assert (await driver.ask("go", session)).error is None


class TestOutputSchema:
    async def test_the_model_is_told_and_a_good_answer_is_the_text(
        self, driver: Driver, model_server: ModelServer
    ) -> None:
        model_server.plan = Plan(text='{"n": 1}')
        end = await driver.ask("go", options=RunOptions(output_schema=SCHEMA))
        assert (end.text, end.error) == ('{"n": 1}', None)
        assert '"required":["n"]' in system_of(model_server.calls[0].body)

    @pytest.mark.parametrize(
        ("bad", "problem"),
        [
            ('{"n": "one"}', "is not of type"),
            ("the answer is 1", "not valid JSON"),
            ('```json\n{"n": 1}\n```', "without a code fence"),
            ("{}", "required"),
        ],
    )
    async def test_a_bad_answer_is_corrected_in_the_same_run(
        self, driver: Driver, model_server: ModelServer, bad: str, problem: str
    ) -> None:
        model_server.next_plans = [Plan(text=bad), Plan(text='{"n": 2}')]
        session = await driver.kedge.session()
        end = await driver.ask("go", session, options=RunOptions(output_schema=SCHEMA))
        assert (end.text, end.error) == ('{"n": 2}', None)
        asked = model_server.calls[1].body["messages"][-1]
        assert asked["role"] == "user"
        assert problem in asked["content"]
        stored = [message.role for message in await driver.kedge.messages(session)]
        assert stored == ["user", "assistant", "assistant"], "nobody said it, so it is no message"

    async def test_one_that_is_never_right_fails(self, driver: Driver, model_server: ModelServer) -> None:
        model_server.plan = Plan(text="no")
        end = await driver.ask("go", options=RunOptions(output_schema=SCHEMA))
        assert end.code == "output_schema"
        assert len(model_server.calls) == 1 + MAX_CORRECTIONS

    async def test_work_comes_before_the_answer(self, driver: Driver, model_server: ModelServer) -> None:
        model_server.on(rounds([call("poke", text="a")], text='{"n": 3}'))
        assert (await driver.ask("go", options=RunOptions(output_schema=SCHEMA))).text == '{"n": 3}'

    @pytest.mark.parametrize(
        "schema", [{"type": "nonsense"}, {"$ref": "https://example.com/schema.json"}, {"$ref": "#/nowhere"}]
    )
    async def test_a_schema_that_is_none_is_refused_before_anything_is_spent(
        self, driver: Driver, model_server: ModelServer, schema: dict[str, Any]
    ) -> None:
        end = await driver.ask("go", options=RunOptions(output_schema=schema))
        assert end.code == "bad_config"
        assert end.error is not None
        assert "\n" not in end.error
        assert len(model_server.calls) == 0


class TestSystem:
    async def test_a_system_prompt_of_ones_own_replaces_how_to_work_and_nothing_else(
        self, driver: Driver, kedge: Kedge, model_server: ModelServer
    ) -> None:
        (kedge.data.parent / "workspace" / "AGENTS.md").write_text("Say please.")
        await driver.ask("go", options=RunOptions(system="You are a parrot."))
        system = system_of(model_server.calls[0].body)
        assert system.startswith("You are a parrot.")
        assert "Kedge" not in system
        assert "Say please." in system
        assert "Working directory" in system

    async def test_a_rule_that_forbids_to_read_holds_in_the_workspace(
        self, kedge: Kedge, model_server: ModelServer
    ) -> None:
        (kedge.data.parent / "workspace" / ".env").write_text("PASSWORD=1")
        (kedge.data.parent / "workspace" / "a.txt").write_text("hello")
        model_server.on(rounds([call("view", path=".env"), call("view", path="a.txt")]))
        async with Driver(kedge, model_server.base_url, tools=TOOLS) as driver:
            session = await kedge.session()
            options = RunOptions(deny=("view(**/.env)",))
            assert (await driver.ask("go", session, options=options)).error is None
            told = {result.tool_call_id: result for result in await results(driver, session)}
        secret, plain = (told[each] for each in sorted(told))
        assert secret.is_error
        assert secret.metadata == {"refused": "rule", "rule": "view(**/.env)"}
        assert "PASSWORD" not in secret.content
        assert "hello" in plain.content

    async def test_a_refusal_names_the_part_of_the_command_for_the_model_and_the_rule_for_people(
        self, kedge: Kedge, model_server: ModelServer
    ) -> None:
        lint = call("bash", command="ls && ruff check src > /tmp/lint.txt", description="Lint, and list what is here")
        forbidden = call("bash", command="ls && git push")
        model_server.on(rounds([lint, forbidden]))
        async with Driver(kedge, model_server.base_url, tools=TOOLS) as driver:
            session = await kedge.session()
            options = RunOptions(mode="auto-edit", deny=("bash(git push *)",))
            assert (await driver.ask("go", session, permissions="deny", options=options)).error is None
            told = {result.tool_call_id: result for result in await results(driver, session)}
        lint_result, push_result = (told[each] for each in sorted(told))
        assert "`ruff check src`" in lint_result.content
        assert "`> /tmp/lint.txt`" in lint_result.content
        assert "The rest of the command would have been allowed." in lint_result.content
        assert lint_result.metadata == {
            "refused": "unattended",
            "allow_rules": ["edit(/tmp/lint.txt)", "bash(ruff check *)"],
        }
        assert "`git push`" in push_result.content
        assert "The rest of the command would have been allowed." in push_result.content
        assert push_result.metadata == {"refused": "rule", "rule": "bash(git push *)"}

    async def test_a_rule_that_cannot_be_read_is_refused_before_anything_is_spent(
        self, driver: Driver, model_server: ModelServer
    ) -> None:
        end = await driver.ask("go", options=RunOptions(allow=("bash(((",)))
        assert end.code == "bad_config"
        assert len(model_server.calls) == 0


@pytest.mark.parametrize(("finish", "code"), [("length", "max_tokens"), ("content_filter", "content_filter")])
async def test_an_answer_that_was_stopped_is_shown_and_is_no_success(
    driver: Driver, model_server: ModelServer, finish: str, code: str
) -> None:
    model_server.plan = Plan(text="so far", finish=finish)
    half = await driver.ask("go")
    assert (half.text, half.code) == ("so far", code)
    model_server.plan = Plan(text="", finish=finish)
    assert (await driver.ask("go")).code == code


async def test_a_limit_on_cost_that_could_never_hold_is_refused_before_anything_is_spent(
    kedge: Kedge, model_server: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kedge.models.values.Endpoint.is_local", False)  # as if it were somebody's who asks for money
    async with Driver(kedge, model_server.base_url) as driver:
        end = await driver.ask("go", options=RunOptions(max_cost=0.5))
    assert end.code == "bad_config"
    assert "openai/tester" in (end.error or "")
    assert not model_server.calls
