"""Summarising: a run whose context is full goes on from a summary, and nothing that matters is lost on the way."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import pytest

from kedge.agent.context_window import is_nearly_full
from kedge.agent.summary_facts import MAX_CHARS
from kedge.config.schema import AgentConfig, Config, ModelConfig, ProviderConfig
from kedge.models.values import ModelInfo
from kedge.models.wires.history import Abilities, valid_history
from kedge.protocol.events import AgentEvent
from kedge.protocol.messages import File, Finish, Message, Part, Role, Text, ToolResult, text_of
from kedge.protocol.runs import Attachment, RunOptions, Usage
from kedge.tools.registry import TOOLS
from tests.agent.driver import Driver, reason_of
from tests.agent.fake_tools import FakeTools
from tests.support.harness import Kedge
from tests.support.model_plan import Plan, PlannedCall
from tests.support.model_server import ModelServer

ASKED = "replaced by a summary"  # words of the request for one
WINDOW = 20_000


@pytest.fixture
async def driver(kedge: Kedge, model_server: ModelServer) -> AsyncGenerator[Driver]:
    async with Driver(kedge, model_server.base_url, tools=FakeTools().tools) as driver:
        limited(driver, WINDOW)
        yield driver


def limited(driver: Driver, window: int | None) -> None:
    driver.config = Config(
        agent=AgentConfig(titles=False),
        providers={"openai": ProviderConfig(models={"tester": ModelConfig(context_window=window)})},
    )


async def summaries(driver: Driver, session_id: str) -> list[tuple[str, str | None]]:
    messages = [message for message in await driver.kedge.messages(session_id) if message.summary]
    return [(text_of(message.parts), reason_of(message)) for message in messages]


async def told(driver: Driver) -> list[AgentEvent]:
    return [event for event in await driver.agent_events() if event.type == "summarize"]


def peek(count: int = 1) -> PlannedCall:
    return PlannedCall("peek", {"text": "x", "count": count})


def message(role: Role, *parts: Part, summary: bool = False) -> Message:
    return Message(id="m", session_id="s", run_id="r", role=role, parts=list(parts), created_at=0.0, summary=summary)


def answer(prompt_tokens: int, output_tokens: int = 0) -> Message:
    return message("assistant", Text("a"), Finish("end_turn", usage=Usage(prompt_tokens, output_tokens)))


@pytest.mark.parametrize(
    ("history", "is_full"),
    [
        ([], False),
        ([message("user", Text("x" * 100_000))], False),  # no step yet: the provider decides
        ([answer(849, 0)], False),
        ([answer(849, 1)], True),
        ([answer(800, 10), message("tool", ToolResult("c", "view", "x" * 160, False))], True),
        ([answer(800, 10), message("tool", ToolResult("c", "view", "x" * 156, False))], False),
        ([answer(800, 10), message("user", File("a.txt", "text/plain", b"x" * 160))], True),
        ([answer(800, 10), message("user", File("a.pdf", "application/pdf", b"x" * 160))], False),  # mostly pictures
        ([answer(800, 10), message("user", File("a.zip", "application/zip", b"x" * 10_000))], False),  # only named
        ([answer(999), message("assistant", Text("s"), Finish("end_turn"), summary=True), answer(10)], False),
    ],
)
def test_the_context_is_nearly_full_by_the_last_step_and_what_came_after_it(
    history: list[Message], is_full: bool
) -> None:
    assert is_nearly_full(history, ModelInfo(context_window=1_000), AgentConfig()) is is_full
    assert not is_nearly_full(history, ModelInfo(), AgentConfig())


async def test_a_full_context_is_summarized_and_the_run_goes_on_by_itself(
    driver: Driver, model_server: ModelServer
) -> None:
    limited(driver, 100_000)
    model_server.on([Plan(text="# Goal\nthe goal")], prompt=ASKED)
    model_server.next_plans = [
        Plan(text="looking", tool_calls=(peek(),), input_tokens=90_000),
        Plan(text="finished", input_tokens=100),
    ]
    session_id = await driver.kedge.session()
    end = await driver.ask("find the bug", session_id)
    assert (end.text, end.error) == ("finished", None)
    ((summary, reason),) = await summaries(driver, session_id)
    assert reason == "end_turn"
    assert summary.startswith("# Goal\nthe goal\n\n")
    assert "find the bug" in summary
    assert [event.details and event.details["why"] for event in await told(driver)] == ["full"]
    first, asking, last = [call.body for call in model_server.calls]
    # The same beginning and the same tools, so that the provider's cache holds.
    assert asking["messages"][: len(first["messages"])] == first["messages"]
    assert asking["tools"] == first["tools"]
    assert ASKED in asking["messages"][-1]["content"]
    assert [m["role"] for m in last["messages"]] == ["system", "user"]
    assert "the goal" in last["messages"][1]["content"]
    assert end.usage.input_tokens == 90_000 + 10 + 100


async def test_where_a_summary_makes_no_room_there_is_not_one_at_each_step(
    driver: Driver, model_server: ModelServer
) -> None:
    model_server.on([Plan(text="# Goal\nthe goal")], prompt=ASKED)
    looking = [Plan(tool_calls=(peek(count),), input_tokens=18_500) for count in range(1, 5)]
    model_server.next_plans = [*looking, Plan(text="finished", input_tokens=18_500)]
    session_id = await driver.kedge.session()
    end = await driver.ask("find the bug", session_id)
    assert (end.text, end.error) == ("finished", None)
    assert len(await summaries(driver, session_id)) == 1


async def test_a_context_that_the_provider_refuses_is_summarized_with_less_to_read(
    driver: Driver, model_server: ModelServer
) -> None:
    limited(driver, None)
    model_server.on([Plan(text="short")], prompt=ASKED)
    model_server.next_plans = [
        Plan(tool_calls=(peek(40_000),)),
        Plan(status=400, error="context_length_exceeded"),
        Plan(text="finished"),
    ]
    session_id = await driver.kedge.session()
    end = await driver.ask("find the bug", session_id)
    assert (end.text, end.error) == ("finished", None)
    assert [event.details and event.details["why"] for event in await told(driver)] == ["refused"]
    refused, asking = model_server.calls[1].body, model_server.calls[2].body
    assert len(str(asking)) < len(str(refused))
    assert "characters left out" in str(asking)
    assert reason_of((await driver.kedge.messages(session_id))[-1]) == "end_turn"


async def test_a_summary_that_does_not_fit_either_is_made_from_less_and_less(
    driver: Driver, model_server: ModelServer
) -> None:
    limited(driver, 100_000)
    too_long = Plan(status=400, error="context_length_exceeded")
    model_server.next_plans = [
        Plan(tool_calls=(peek(90_000),), input_tokens=95_000),
        *[too_long] * 2,
        Plan(text="at last"),
        Plan(text="finished"),
    ]
    session_id = await driver.kedge.session()
    end = await driver.ask("find the bug", session_id)
    assert end.text == "finished"
    sizes = [len(str(call.body)) for call in list(model_server.calls)[1:4]]
    assert sizes == sorted(sizes, reverse=True)
    assert [reason for _, reason in await summaries(driver, session_id)] == ["interrupted"] * 2 + ["end_turn"]


async def test_a_summary_that_cannot_be_made_fails_the_run_with_a_word(
    driver: Driver, model_server: ModelServer
) -> None:
    model_server.on([Plan(text="", finish="stop")], prompt=ASKED)
    model_server.next_plans = [Plan(tool_calls=(peek(),), input_tokens=19_000)]
    end = await driver.ask("find the bug")
    assert end.code == "summary_failed"
    assert (end.error or "").startswith("The conversation could not be summarized: the model wrote no summary. ")


async def test_what_passes_is_waited_out_and_what_was_half_written_is_no_summary(
    driver: Driver, model_server: ModelServer
) -> None:
    model_server.next_plans = [
        Plan(tool_calls=(peek(),), input_tokens=19_000),
        Plan(text="half", chunks=3, drop_after=2),
        Plan(text="whole"),
        Plan(text="finished"),
    ]
    session_id = await driver.kedge.session()
    assert (await driver.ask("find the bug", session_id)).text == "finished"
    assert [reason for _, reason in await summaries(driver, session_id)] == ["interrupted", "end_turn"]
    assert len(driver.delays) == 1


async def test_a_model_that_calls_a_tool_instead_of_writing_is_asked_again(
    driver: Driver, model_server: ModelServer
) -> None:
    model_server.next_plans = [
        Plan(tool_calls=(peek(),), input_tokens=19_000),
        Plan(text="", tool_calls=(peek(),)),
        Plan(text="a summary", tool_calls=(peek(),)),
        Plan(text="finished"),
    ]
    session_id = await driver.kedge.session()
    assert (await driver.ask("find the bug", session_id)).text == "finished"
    made = [message for message in await driver.kedge.messages(session_id) if message.summary]
    assert not any(part for each in made for part in each.parts if not isinstance(part, Text | Finish))
    assert len(await driver.kedge.results(session_id)) == 1


async def test_a_context_too_small_for_the_summary_itself_is_told(driver: Driver, model_server: ModelServer) -> None:
    too_long = Plan(status=400, error="context_length_exceeded")
    model_server.on([Plan(text="short")], prompt=ASKED)
    model_server.next_plans = [Plan(tool_calls=(peek(),)), too_long, too_long]
    end = await driver.ask("find the bug")
    assert end.code == "context_too_long"


async def test_a_cancel_during_a_summary_cancels_the_run_and_the_session_goes_on(
    driver: Driver, model_server: ModelServer
) -> None:
    model_server.on([Plan(text="never finished", chunks=3, gate="writing", gate_after=1)], prompt=ASKED)
    model_server.next_plans = [Plan(tool_calls=(peek(),), input_tokens=19_000)]
    session_id = await driver.kedge.session()
    receipt = await driver.kedge.send(session_id, "find the bug")
    await driver.shown("w0 ")
    await driver.kedge.cancel(session_id)
    end = await driver.kedge.end(receipt.run_id)
    assert (end.cancelled, end.error) == (True, None)
    assert [reason for _, reason in await summaries(driver, session_id)] == ["canceled"]
    history = await driver.kedge.history(session_id)
    assert not any(each.summary for each in history)
    model_server.rules.clear()
    model_server.next_plans = [Plan(text="a summary"), Plan(text="again")]
    assert (await driver.ask("go on", session_id)).text == "again"


async def test_a_crash_during_a_summary_begins_it_anew(driver: Driver, model_server: ModelServer, kedge: Kedge) -> None:
    model_server.on([Plan(text="never finished", gate="writing", gate_after=0)], prompt=ASKED)
    model_server.next_plans = [Plan(tool_calls=(peek(),), input_tokens=19_000)]
    session_id = await kedge.session()
    receipt = await kedge.send(session_id, "find the bug")
    await model_server.until(lambda calls: any(call.held for call in calls))
    await kedge.crash()
    model_server.rules.clear()
    model_server.next_plans = [Plan(text="a summary"), Plan(text="finished")]
    await kedge.start()
    end = await kedge.end(receipt.run_id)
    assert (end.text, end.error) == ("finished", None)
    assert [reason for _, reason in await summaries(driver, session_id)] == ["interrupted", "end_turn"]


async def test_a_crash_after_a_summary_does_not_repeat_it(
    driver: Driver, model_server: ModelServer, kedge: Kedge
) -> None:
    model_server.on([Plan(text="a summary")], prompt=ASKED)
    model_server.next_plans = [
        Plan(tool_calls=(peek(),), input_tokens=19_000),
        Plan(text="cut off", gate="step", gate_after=0),
        Plan(text="finished"),
    ]
    session_id = await kedge.session()
    receipt = await kedge.send(session_id, "find the bug")
    await model_server.until(lambda calls: any(call.held for call in calls))
    await kedge.crash_and_start()
    assert (await kedge.end(receipt.run_id)).text == "finished"
    assert len(await summaries(driver, session_id)) == 1
    assert len(await kedge.results(session_id)) == 1


async def test_steps_before_a_summary_count_also_after_a_crash(
    driver: Driver, model_server: ModelServer, kedge: Kedge
) -> None:
    model_server.on([Plan(text="a summary")], prompt=ASKED)
    model_server.next_plans = [
        Plan(tool_calls=(peek(),), input_tokens=19_000),
        Plan(text="cut off", gate="step", gate_after=0),
        Plan(tool_calls=(peek(2),)),
        Plan(text="one too many"),
    ]
    receipt = await kedge.send(await kedge.session(), "find the bug", options=RunOptions(max_steps=2))
    await model_server.until(lambda calls: any(call.held for call in calls))
    await kedge.crash_and_start()
    assert (await kedge.end(receipt.run_id)).code == "max_steps"


async def test_on_request_a_session_is_summarized_as_a_run_of_its_own(
    driver: Driver, model_server: ModelServer
) -> None:
    model_server.on([Plan(text="what was said")], prompt=ASKED)
    session_id = await driver.kedge.session()
    await driver.ask("remember 4711", session_id)
    end = await driver.ask("", session_id, kind="summarize")
    assert (end.error, end.text, end.usage.output_tokens) == (None, "", 1)
    ((summary, reason),) = await summaries(driver, session_id)
    assert (summary.startswith("what was said\n\n"), "remember 4711" in summary, reason) == (True, True, "end_turn")
    again = await driver.ask("", session_id, kind="summarize")
    assert (again.error, again.usage) == (None, Usage())  # there is nothing new to say
    model_server.next_plans = [Plan(text="4711")]
    assert (await driver.ask("which number?", session_id)).text == "4711"
    asked = model_server.calls[-1].body["messages"]
    assert [m["role"] for m in asked] == ["system", "user"] or "what was said" in str(asked)


async def test_an_empty_session_is_summarized_at_once_without_a_model(
    driver: Driver, model_server: ModelServer
) -> None:
    end = await driver.ask("", kind="summarize")
    assert (end.error, end.cancelled, model_server.count) == (None, False, 0)


def full_step(*calls: PlannedCall) -> Plan:
    """A step after which the context is nearly full."""
    return Plan(text="", tool_calls=calls or (peek(),), input_tokens=19_000)


async def test_the_request_is_carried_word_for_word_and_bounded(driver: Driver, model_server: ModelServer) -> None:
    model_server.on([Plan(text="written")], prompt=ASKED)
    model_server.next_plans = [full_step(), Plan(text="finished")]
    session_id = await driver.kedge.session()
    await driver.ask("begin " + "x" * 2 * MAX_CHARS + " end", session_id)
    ((summary, _),) = await summaries(driver, session_id)
    assert "the request being worked on\nbegin xxx" in summary
    assert "xx end" in summary
    assert "characters left out" in summary
    assert len(summary) < MAX_CHARS


async def test_every_message_of_the_user_survives_two_summaries(driver: Driver, model_server: ModelServer) -> None:
    limited(driver, 100_000)
    model_server.on([Plan(text="written")], prompt=ASKED)
    session_id = await driver.kedge.session()
    said = ["never touch legacy.py", "use tabs", "the port is 4711", "and now the last one"]
    full = Plan(text="", tool_calls=(peek(),), input_tokens=90_000)
    for prompt, is_full in zip(said, (False, True, False, True), strict=True):
        model_server.next_plans = [*([full] if is_full else []), Plan(text="done")]
        await driver.ask(prompt, session_id)
    (first, _), (second, _) = await summaries(driver, session_id)
    assert [first.find(prompt) >= 0 for prompt in said] == [True, True, False, False]
    assert [second.count(prompt) for prompt in said] == [1, 1, 1, 1]
    positions = [second.index(prompt) for prompt in said]
    assert positions == sorted(positions)
    assert "request being worked on\nand now the last one" in second
    assert "use tabs" in str(model_server.calls[-1].body["messages"])


async def test_of_many_long_messages_the_newest_keep_most(driver: Driver, model_server: ModelServer) -> None:
    limited(driver, 100_000)
    model_server.on([Plan(text="written")], prompt=ASKED)
    session_id = await driver.kedge.session()
    for number in range(8):
        await driver.ask(f"wish {number}: " + "x" * 9_000, session_id)
    model_server.next_plans = [Plan(text="", tool_calls=(peek(),), input_tokens=90_000), Plan(text="done")]
    await driver.ask("now", session_id)
    ((summary, _),) = await summaries(driver, session_id)
    sizes = [len(each) for each in summary.split("### Message ")[1:]]
    assert sum(sizes) < MAX_CHARS
    assert all(f"wish {number}: " in summary for number in (3, 4, 5, 6, 7))
    assert sizes[:-1] == sorted(sizes[:-1])


async def test_undone_messages_are_not_carried(driver: Driver, model_server: ModelServer) -> None:
    model_server.on([Plan(text="written")], prompt=ASKED)
    kedge = driver.kedge
    session_id = await kedge.session()
    await driver.ask("keep this", session_id)
    await driver.ask("forget this", session_id)
    await kedge.engine.undos.undo(kedge.workspace_id, session_id)
    model_server.next_plans = [full_step(), Plan(text="done")]
    await driver.ask("go on", session_id)
    ((summary, _),) = await summaries(driver, session_id)
    assert "keep this" in summary
    assert "forget this" not in summary


async def test_attachments_are_named(driver: Driver, model_server: ModelServer) -> None:
    model_server.on([Plan(text="written")], prompt=ASKED)
    model_server.next_plans = [full_step(), Plan(text="done")]
    session_id = await driver.kedge.session()
    attached = (Attachment("notes.txt", "text/plain", b"secret content"),)
    await driver.ask("read it", session_id, attachments=attached)
    ((summary, _),) = await summaries(driver, session_id)
    assert "notes.txt" in summary
    assert "secret content" not in summary


async def test_todos_changed_files_running_jobs_and_seen_files_are_carried_over_two_summaries(
    kedge: Kedge, model_server: ModelServer
) -> None:
    workspace = kedge.data.parent / "workspace"
    (workspace / "seen.py").write_text("a = 1\n")
    model_server.on([Plan(text="written")], prompt=ASKED)
    todos = PlannedCall("todos", {"todos": [{"content": "mend the dates", "status": "pending"}]})
    write = PlannedCall("write", {"path": "new.py", "content": "b = 2\nc = 3\n"})
    job = PlannedCall("bash", {"command": "sleep 300", "run_in_background": True})
    view = PlannedCall("view", {"path": "seen.py"})
    async with Driver(kedge, model_server.base_url, tools=TOOLS) as driver:
        limited(driver, 100_000)
        session_id = await kedge.session()
        for calls in ((todos, write, job), (view,)):
            model_server.next_plans = [Plan(text="", tool_calls=calls, input_tokens=90_000), Plan(text="finished")]
            assert (await driver.ask("go", session_id, permissions="allow")).error is None
        (first, _), (second, _) = await summaries(driver, session_id)
        (running,) = driver.agent.jobs.of(kedge.workspace_id).list()
        for summary in (first, second):
            assert "[ ] mend the dates" in summary
            assert "- new.py (created, +2 -0)" in summary
            assert f"- job {running.id}: sleep 300" in summary
        assert second.rstrip().endswith("- seen.py")
        await running.command.end()


async def test_a_summary_on_the_other_wire_is_the_same(kedge: Kedge, model_server: ModelServer) -> None:
    env = {
        "ANTHROPIC_BASE_URL": model_server.anthropic_url,
        "ANTHROPIC_API_KEY": "key",
        "KEDGE_MODEL": "anthropic/tester",
    }
    model_server.on([Plan(text="the goal")], prompt=ASKED)
    model_server.next_plans = [
        Plan(text="looking", tool_calls=(peek(),), input_tokens=1_000, cache_read_tokens=18_000),
        Plan(text="finished"),
    ]
    async with Driver(kedge, model_server.base_url, tools=FakeTools().tools, env=env) as driver:
        models = {"tester": ModelConfig(context_window=WINDOW)}
        driver.config = Config(agent=AgentConfig(titles=False), providers={"anthropic": ProviderConfig(models=models)})
        session_id = await kedge.session()
        assert (await driver.ask("find the bug", session_id)).text == "finished"
        ((summary, reason),) = await summaries(driver, session_id)
    assert (summary.startswith("the goal"), reason) == (True, "end_turn")
    first, asking, last = [call.body for call in model_server.calls]
    assert asking["tools"] == first["tools"]
    assert [message["role"] for message in last["messages"]] == ["user"]


@pytest.mark.slow
async def test_a_session_of_five_hundred_messages_and_ten_summaries_stays_valid(
    driver: Driver, model_server: ModelServer
) -> None:
    """Each run makes two steps with a call, the last of which fills the context every tenth time."""
    model_server.on([Plan(text="all so far")], prompt=ASKED)
    session_id = await driver.kedge.session()
    runs = 0
    while len(await summaries(driver, session_id)) < 10 or runs < 100:
        runs += 1
        full = 19_000 if runs % 10 == 0 else 10
        model_server.next_plans = [
            Plan(text=f"looking {runs}", tool_calls=(peek(), peek(2))),
            Plan(text="and again", tool_calls=(peek(),), input_tokens=full),
            Plan(text=f"answer {runs}"),
        ]
        end = await driver.ask(f"request {runs}", session_id)
        assert end.text == f"answer {runs}"
        history = await driver.kedge.history(session_id)
        sent = valid_history(history, Abilities())
        assert sent[0].role == "user"
        assert len(history) < 80
    messages = (await driver.kedge.store.messages(driver.kedge.workspace_id, session_id)).messages
    assert len(messages) >= 500
    assert sum(each.summary for each in messages) == 10
