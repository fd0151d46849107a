"""Requests fit the model's window: no prompt with its answer is larger, and no result fills it."""

from __future__ import annotations

import asyncio
import dataclasses
import random
from collections.abc import AsyncGenerator, Sequence
from itertools import pairwise
from pathlib import Path

import pytest

from kedge.agent.context_files import NESTED
from kedge.agent.context_window import UNKNOWN_RESULT_CHARS, fit_request, is_nearly_full
from kedge.agent.history_size import count_chars
from kedge.config.schema import AgentConfig, Config, ModelConfig, ProviderConfig
from kedge.models.values import Endpoint, ModelInfo, StepRequest
from kedge.models.wires.history import Abilities, valid_history
from kedge.protocol.messages import Finish, Message, Part, Role, Text, ToolCall, ToolResult, text_of
from kedge.protocol.runs import Usage
from kedge.tools.registry import TOOLS
from tests.agent.driver import Driver
from tests.support.harness import Kedge
from tests.support.model_plan import Plan, PlannedCall
from tests.support.model_server import ModelServer

ASKED = "replaced by a summary"  # words of the request for one


@pytest.fixture
async def driver(kedge: Kedge, model_server: ModelServer) -> AsyncGenerator[Driver]:
    async with Driver(kedge, model_server.base_url, tools=TOOLS) as driver:
        yield driver


def enforce(driver: Driver, model_server: ModelServer, window: int, max_output: int | None = None) -> None:
    """The server refuses what does not fit, as vLLM does."""
    model_server.window = window
    models = {"tester": ModelConfig(context_window=window, max_output_tokens=max_output)}
    driver.config = Config(agent=AgentConfig(titles=False), providers={"openai": ProviderConfig(models=models)})


def write_files(driver: Driver, count: int, lines: int) -> None:
    for number in range(count):
        text = "".join(f"line {line} of file {number}: {'words ' * 8}\n" for line in range(lines))
        (driver.kedge.data.parent / "workspace" / f"f{number}.txt").write_text(text)


def view(number: int) -> Plan:
    return Plan(text="", tool_calls=(PlannedCall("view", {"path": f"f{number}.txt"}),))


async def results(driver: Driver, session_id: str) -> list[str]:
    return [result.content for result in await driver.kedge.results(session_id)]


@pytest.mark.parametrize(("window", "max_output"), [(16_384, None), (16_384, 16_384), (32_768, 8_192), (8_192, 4_096)])
async def test_a_long_task_in_a_small_window_sends_nothing_that_does_not_fit(
    driver: Driver, model_server: ModelServer, window: int, max_output: int | None
) -> None:
    enforce(driver, model_server, window, max_output)
    write_files(driver, 8, 400)
    model_server.on([Plan(text="## Goal\nread the files")], prompt=ASKED)
    model_server.next_plans = [*(view(number) for number in range(8)), Plan(text="finished")]
    session_id = await driver.kedge.session()
    end = await driver.ask("read all files", session_id)
    assert (end.text, end.error) == ("finished", None)
    asked = [call.body for call in model_server.calls if ASKED in str(call.body["messages"][-1])]
    assert asked
    assert all(256 <= (body.get("max_tokens") or body["max_completion_tokens"]) <= window // 4 for body in asked)
    made = [message for message in await driver.kedge.messages(session_id) if message.summary]
    assert len(made) == len(asked), "none was refused"
    assert not any(message.role == "assistant" and not message.parts for message in made)


@pytest.mark.parametrize("is_killed", [False, True])
async def test_a_run_that_is_summarized_again_and_again_without_progress_ends(
    driver: Driver, model_server: ModelServer, kedge: Kedge, is_killed: bool
) -> None:
    enforce(driver, model_server, 32_768)
    write_files(driver, 2, 2_000)
    model_server.on([Plan(text="## Goal\nread the file")], prompt=ASKED)
    both = [view(0), view(1)] * 40
    if is_killed:
        both[5] = dataclasses.replace(both[5], gate="step")
        both.insert(5, both[5])
    model_server.next_plans = both
    session_id = await kedge.session()
    receipt = await kedge.send(session_id, "read all files")
    if is_killed:
        await model_server.until(lambda calls: any(call.held for call in calls))
        await kedge.crash()
        model_server.release("step")
        await kedge.start()
    end = await kedge.end(receipt.run_id)
    assert end.code == "repeats"
    assert "summarized" in (end.error or "")
    made = [message for message in await kedge.messages(session_id) if message.summary]
    assert len(made) == 3
    # The next prompt may try again.
    model_server.next_plans = [Plan(text="something else")]
    assert (await driver.ask("do something else", session_id)).text == "something else"


async def test_a_model_that_counts_more_tokens_than_we_estimate_still_fits(
    driver: Driver, model_server: ModelServer
) -> None:
    """Text without spaces has many more tokens than English: what the first steps counted is taken for the next."""
    enforce(driver, model_server, 24_000, 24_000)
    model_server.chars_per_token = 3.2
    write_files(driver, 6, 300)
    model_server.on([Plan(text="## Goal\nread the files")], prompt=ASKED)
    model_server.next_plans = [*(view(number) for number in range(6)), Plan(text="finished")]
    end = await driver.ask("read all files")
    assert (end.text, end.error) == ("finished", None)
    assert model_server.refused_as_too_long == 0


async def test_a_window_that_the_tools_alone_fill_is_told(driver: Driver, model_server: ModelServer) -> None:
    enforce(driver, model_server, 5_200)
    write_files(driver, 1, 400)
    model_server.next_plans = [view(0)]
    end = await driver.ask("read it")
    assert end.code in ("summary_failed", "context_too_long")
    assert "larger context window" in (end.error or "")
    assert (end.error or "").lower().count("start a new session") <= 1


@pytest.mark.parametrize(("window", "limit"), [(32_768, 32_768), (None, UNKNOWN_RESULT_CHARS)])
async def test_a_result_takes_a_quarter_of_the_window_and_says_how_to_get_the_rest(
    driver: Driver, model_server: ModelServer, window: int | None, limit: int
) -> None:
    if window is not None:
        enforce(driver, model_server, window)
    model_server.window = None
    write_files(driver, 1, 3_000)
    shown = "for i in $(seq 3000); do echo found-$i; done"
    model_server.next_plans = [
        view(0),
        Plan(text="", tool_calls=(PlannedCall("grep", {"pattern": "line", "path": "f0.txt", "context": 20}),)),
        Plan(text="", tool_calls=(PlannedCall("bash", {"command": shown}),)),
        Plan(text="finished"),
    ]
    session_id = await driver.kedge.session()
    await driver.ask("look", session_id, permissions="allow")
    viewed, *others = await results(driver, session_id)
    assert limit * 0.9 < len(viewed) <= limit
    assert "Go on with offset=" in viewed.splitlines()[-1]
    assert all(len(each) <= limit for each in others)


async def test_the_whole_of_a_cut_result_is_in_a_file_that_can_be_viewed(
    driver: Driver, model_server: ModelServer
) -> None:
    enforce(driver, model_server, 8_192)
    model_server.window = None
    write_files(driver, 1, 400)
    search = Plan(
        text="", tool_calls=(PlannedCall("grep", {"pattern": "line [0-9]*5 of", "path": "f0.txt", "context": 4}),)
    )
    model_server.next_plans = [search, search, Plan(text="finished")]
    session_id = await driver.kedge.session()
    await driver.ask("look", session_id)
    found, again = await results(driver, session_id)
    assert found == again, "the same call has the same result"
    name = next(word for word in found.split() if "/output-" in word).rstrip(":")
    assert await asyncio.to_thread(lambda: Path(name).stat().st_size) > len(found)
    assert len(found) <= 8_192
    assert found.partition("[…")[0].rstrip().endswith("words"), "cut at the end of a line"


async def test_the_window_that_a_server_tells_after_the_first_step_counts_from_then_on(
    kedge: Kedge, model_server: ModelServer
) -> None:
    """Ollama loads a model with the first request, and only then decides how large its window is."""
    model_server.others = {"/api/ps": {"models": []}, "/api/show": {"parameters": "", "model_info": {}}}
    env = {"OLLAMA_BASE_URL": model_server.base_url, "KEDGE_MODEL": "ollama/qwen3"}
    async with Driver(kedge, model_server.base_url, tools=TOOLS, env=env) as driver:
        write_files(driver, 2, 2_000)
        model_server.next_plans = [
            dataclasses.replace(view(0), gate="first"),
            view(1),
            Plan(text="finished"),
        ]
        session_id = await kedge.session()
        receipt = await kedge.send(session_id, "read the files")
        await model_server.until(lambda calls: any(call.held for call in calls))
        model_server.others["/api/ps"] = {"models": [{"name": "qwen3:latest", "context_length": 8_000}]}
        model_server.release("first")
        assert (await kedge.end(receipt.run_id)).text == "finished"
        first, second = await results(driver, session_id)
        assert len(first) <= 8_000, "the call came after the server had decided"
        assert len(second) <= 8_000
        notices = [event.message for event in await driver.agent_events() if event.type == "notice"]
    assert any("8,000 tokens" in (notice or "") and "OLLAMA_CONTEXT_LENGTH" in (notice or "") for notice in notices)


# Shortened results.


def message(number: int, role: Role, *parts: Part) -> Message:
    return Message(id=f"m{number}", session_id="s", run_id="r", role=role, parts=list(parts), created_at=0.0)


SYSTEM = "x" * 20_000


def play(sizes: list[int], endpoint: Endpoint) -> tuple[list[Message], list[list[Message]]]:
    """A conversation where each step views something of that size, until it is full, and the request of each step."""
    history = [message(0, "user", Text("go"))]
    requests: list[list[Message]] = []
    for number, size in enumerate(sizes):
        if is_nearly_full(history, endpoint.info, AgentConfig()):
            break
        sent = list(fit_request(StepRequest(system=SYSTEM, history=history), endpoint).history)
        requests.append(valid_history(sent, Abilities()))
        usage = Usage((len(SYSTEM) + count_chars(sent)) // 4, 20)
        call = ToolCall(f"c{number}", "view", '{"path": "a"}', True)
        history.append(message(len(history), "assistant", call, Finish("tool_use", usage=usage)))
        text = "".join(f"{number}.{line}\n" for line in range(size))[:size]
        history.append(message(len(history), "tool", ToolResult(call.id, "view", text, False)))
    return history, requests


def contents_of(messages: Sequence[Message]) -> list[str]:
    return [part.content for each in messages for part in each.parts if isinstance(part, ToolResult)]


def model(window: int) -> Endpoint:
    return Endpoint(provider="p", model="m", base_url="http://h", info=ModelInfo(context_window=window))


def test_old_large_results_are_shortened_when_the_window_is_half_full() -> None:
    history, requests = play([45_000, 500, 45_000, 45_000, 45_000, 45_000, 500], model(100_000))
    whole, shortened = contents_of(history), contents_of(requests[-1])
    assert contents_of(requests[-2]) == whole[:5], "not before"
    assert [len(content) for content in shortened[3:]] == [45_000, 45_000, 45_000]
    assert shortened[1] == whole[1]
    for old, full in ((shortened[0], whole[0]), (shortened[2], whole[2])):
        head, mark, tail = old.split("\n\n")
        assert full.startswith(head)
        assert full.endswith(tail)
        assert "Call view again" in mark
        assert len(old) < 2_500


def test_a_command_is_not_to_be_repeated_where_its_output_is_in_a_file() -> None:
    history, _ = play([45_000] * 6, model(100_000))
    output = f"{'x' * 20_000}\n[… All of it is in /data/output-0123abcd.txt: use view …]\n{'y' * 20_000}"
    history[2] = message(2, "tool", ToolResult("c0", "bash", output, False))
    (old, *_) = contents_of(fit_request(StepRequest(system=SYSTEM, history=history), model(100_000)).history)
    assert "/data/output-0123abcd.txt" in old
    assert "again" not in old


def test_instructions_that_follow_an_old_result_are_kept() -> None:
    history, _ = play([45_000] * 6, model(100_000))
    rules = f"{NESTED}# Instructions from lib/AGENTS.md\n\n{'Rules of lib. ' * 100}"
    metadata = {"instructions": {"lib/AGENTS.md": "digest"}}
    for length in (45_000, 500):
        history[2] = message(2, "tool", ToolResult("c0", "view", f"{'x' * length}{rules}", False, metadata))
        (old, *_) = contents_of(fit_request(StepRequest(system=SYSTEM, history=history), model(100_000)).history)
        assert old.endswith(rules)
        assert len(old) - len(rules) < 2_500


@pytest.mark.parametrize("seed", range(30))
def test_what_was_sent_stays_the_same_but_for_a_few_jumps(seed: int) -> None:
    chance = random.Random(seed)
    window = chance.choice([32_768, 60_000, 200_000])
    sizes = [chance.choice([100, 3_000, window // 10, window // 2]) for _ in range(100)]
    history, requests = play(sizes, model(window))
    jumps = sum(current[: len(last)] != last for last, current in pairwise(requests))
    print(f"seed {seed}: {jumps} jumps in {len(requests)} requests")
    assert jumps <= 1 + len(requests) // 6
    whole = contents_of(history)
    assert len(whole) < 4 or contents_of(requests[-1])[-3:] == whole[-4:-1], "the newest stay"
    parts = (StepRequest(system=SYSTEM, history=history[: 1 + 2 * number]) for number in range(len(requests)))
    again = [valid_history(fit_request(part, model(window)).history, Abilities()) for part in parts]
    assert again == requests, "derived from the history alone"


def test_a_window_that_nobody_knows_changes_nothing() -> None:
    history, _ = play([200_000] * 8, Endpoint(provider="p", model="m", base_url="http://h"))
    request = StepRequest(system="", history=history)
    fitted = fit_request(request, Endpoint(provider="p", model="m", base_url="http://h"))
    assert (list(fitted.history), fitted.max_output_tokens) == (history, None)


async def test_a_long_run_goes_on_without_a_summary_where_shortening_is_enough(
    driver: Driver, model_server: ModelServer, kedge: Kedge
) -> None:
    """Also when the server dies in between: what it sends then begins as before."""
    enforce(driver, model_server, 40_000)
    write_files(driver, 10, 300)
    plans = [view(number) for number in range(10)]
    gated = Plan(text="", tool_calls=view(8).tool_calls, gate="step")
    model_server.next_plans = [*plans[:8], gated, gated, plans[9], Plan(text="finished")]
    session_id = await kedge.session()
    receipt = await kedge.send(session_id, "read all files")
    await model_server.until(lambda calls: any(call.held for call in calls))
    await kedge.crash()
    model_server.release("step")
    await kedge.start()
    end = await kedge.end(receipt.run_id)
    assert (end.text, end.error) == ("finished", None)
    assert not any(each.summary for each in await kedge.messages(session_id))
    killed, resumed = list(model_server.calls)[8:10]
    assert resumed.body["messages"] == killed.body["messages"]
    assert "earlier result" in str(killed.body)
    assert "earlier result" not in text_of((await kedge.messages(session_id))[1].parts)
