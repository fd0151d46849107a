"""A task of several rounds: steps, calls side by side or in order, results that teach; on every wire."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from kedge.agent.tool_context import MAX_CHARS, MAX_IMAGES, MAX_SHOWN_CHARS
from kedge.protocol.events import Event
from kedge.protocol.messages import Delta, Image, Message, MessageOf, ToolCall, ToolResult
from kedge.protocol.requests import Answer, PermissionRequest
from kedge.protocol.runs import Usage
from kedge.tools.builtin.grep import TOOL as GREP
from kedge.tools.builtin.view import TOOL as VIEW
from kedge.tools.builtin.write import TOOL as WRITE
from kedge.tools.port import Access, Output, Tool, ToolContext, ToolScope
from tests.agent.driver import KEY, Driver, reason_of
from tests.agent.fake_tools import FakeTools, Params, make_tool
from tests.support.harness import Kedge
from tests.support.model_plan import Plan, PlannedCall
from tests.support.model_server import ModelServer
from tests.support.wires import WIRES, conversation, environ

LIMIT_S = 30.0


@pytest.fixture
def fake_tools() -> FakeTools:
    return FakeTools()


@pytest.fixture(params=WIRES)
async def each(
    request: pytest.FixtureRequest, kedge: Kedge, model_server: ModelServer, fake_tools: FakeTools
) -> AsyncGenerator[Driver]:
    """A driver on each wire."""
    env = environ(request.param, model_server, KEY)
    async with Driver(kedge, model_server.base_url, tools=fake_tools.tools, env=env) as driver:
        yield driver


@pytest.fixture
async def driver(kedge: Kedge, model_server: ModelServer, fake_tools: FakeTools) -> AsyncGenerator[Driver]:
    async with Driver(kedge, model_server.base_url, tools=fake_tools.tools) as driver:
        yield driver


def call(name: str, **params: Any) -> PlannedCall:
    return PlannedCall(name, params)


def rounds(*steps: list[PlannedCall], text: str = "done") -> list[Plan]:
    return [*(Plan(text="", tool_calls=tuple(calls)) for calls in steps), Plan(text=text)]


async def results(driver: Driver, session: str) -> list[ToolResult]:
    return await driver.kedge.results(session)


async def test_a_task_of_several_rounds(each: Driver, model_server: ModelServer, fake_tools: FakeTools) -> None:
    model_server.on(
        [
            Plan(text="first", reasoning="hm", signature="signed", tool_calls=(call("peek", text="a"),)),
            Plan(
                text="",
                tool_calls=(call("peek", text="b"), call("poke", text="c"), call("poke", text="d")),
                input_piece=3,
                interleave=True,
            ),
            Plan(text="all done", input_tokens=100, output_tokens=7),
        ]
    )
    session = await each.kedge.session()
    end = await each.ask("go", session)
    assert (end.text, end.error) == ("all done", None)
    assert end.usage.output_tokens == 7 + 1 + 1
    assert [result.content for result in await results(each, session)] == ["a", "b", "c", "d"]
    assert fake_tools.log == [
        f"{tool} {moment}" for tool in ("peek a", "peek b", "poke c", "poke d") for moment in ("begins", "ends")
    ]
    messages = await each.kedge.messages(session)
    assert [(message.role, reason_of(message)) for message in messages] == [
        ("user", None),
        ("assistant", "tool_use"),
        ("tool", None),
        ("assistant", "tool_use"),
        ("tool", None),
        ("tool", None),
        ("tool", None),
        ("assistant", "end_turn"),
    ]
    assert [part.input for part in messages[3].parts if isinstance(part, ToolCall)] == [
        '{"text": "b"}',
        '{"text": "c"}',
        '{"text": "d"}',
    ]
    assert len(model_server.calls) == 3


async def test_what_was_sent_before_is_sent_again_byte_for_byte(
    each: Driver, model_server: ModelServer, fake_tools: FakeTools
) -> None:
    model_server.on(rounds([call("peek", text="a")], [call("poke", text="b")]), prompt="go")
    session = await each.kedge.session()
    await each.ask("go", session)
    await each.ask("and now?", session)
    bodies = [made.body for made in model_server.calls]
    assert len(bodies) == 4
    for before, after in itertools.pairwise(bodies):
        assert (before.get("system"), before["tools"]) == (after.get("system"), after["tools"])
        known = _unmarked(conversation(before))
        assert _unmarked(conversation(after))[: len(known)] == known


async def test_reading_calls_of_a_step_run_side_by_side(
    driver: Driver, model_server: ModelServer, fake_tools: FakeTools
) -> None:
    model_server.on(rounds([call("peek", text=name, gate=name) for name in "abc"]))
    session = await driver.kedge.session()
    receipt = await driver.kedge.send(session, "go")
    async with asyncio.timeout(LIMIT_S):
        for name in "abc":
            await fake_tools.gates.reached(name)  # all have begun, and none has ended
        assert fake_tools.log == [f"peek {name} begins" for name in "abc"]
        fake_tools.gates.open("b")
        await driver.kedge.seen(lambda event: _is_result(event.payload, "b"))  # committed while the others work
        fake_tools.gates.open("a")
        fake_tools.gates.open("c")
    assert (await driver.kedge.end(receipt.run_id)).text == "done"


async def test_a_writing_call_waits_for_all_before_it_and_those_after_wait_for_it(
    driver: Driver, model_server: ModelServer, fake_tools: FakeTools
) -> None:
    calls = [
        call("peek", text="a", gate="a"),
        call("peek", text="b"),
        call("poke", text="c", gate="c"),
        call("peek", text="d"),
    ]
    model_server.on(rounds(calls))
    receipt = await driver.kedge.send(await driver.kedge.session(), "go")
    async with asyncio.timeout(LIMIT_S):
        await fake_tools.gates.reached("a")
        await driver.kedge.seen(lambda event: _is_result(event.payload, "b"))
        assert "poke c begins" not in fake_tools.log
        fake_tools.gates.open("a")
        await fake_tools.gates.reached("c")
        assert "peek d begins" not in fake_tools.log
        fake_tools.gates.open("c")
    assert (await driver.kedge.end(receipt.run_id)).error is None
    assert fake_tools.log[-4:] == ["poke c begins", "poke c ends", "peek d begins", "peek d ends"]


async def test_output_is_shown_while_a_call_runs(
    driver: Driver, model_server: ModelServer, fake_tools: FakeTools
) -> None:
    model_server.on(rounds([call("poke", text="a", gate="a")]))
    receipt = await driver.kedge.send(await driver.kedge.session(), "go")
    await driver.kedge.seen(
        lambda event: (
            isinstance(event.payload, Delta)
            and (event.payload.kind, event.payload.text) == ("tool_output", "a at work\n")
        )
    )
    fake_tools.gates.open("a")
    await driver.kedge.end(receipt.run_id)


@pytest.mark.parametrize(
    ("wrong", "lesson"),
    [
        (PlannedCall("peak", {"text": "a"}), "Did you mean `peek`?"),
        (PlannedCall("nothing", {}), "Your tools are: boom, flood"),
        (PlannedCall("peek", '{"text": '), "not valid JSON"),
        (PlannedCall("peek", "[1]"), "must be a JSON object"),
        (PlannedCall("peek", {"text": 5}), "Expected `str`, got `int` - at `$.text`"),
        (PlannedCall("peek", {"test": "a"}), "There is no `test`: did you mean `text`?"),
        (PlannedCall("peek", {}), "`text` (string, required), `count` (integer, optional)"),
        (PlannedCall("boom", {"text": "out of order"}), "RuntimeError: out of order"),
        (PlannedCall("refuse", {"text": "it"}), "it is not there; look elsewhere"),
    ],
)
async def test_what_goes_wrong_with_a_call_is_a_result_that_teaches(
    driver: Driver, model_server: ModelServer, wrong: PlannedCall, lesson: str
) -> None:
    model_server.on(rounds([wrong], [call("peek", text="right")]))
    session = await driver.kedge.session()
    assert (await driver.ask("go", session)).error is None
    first, second = await results(driver, session)
    assert first.is_error
    assert lesson in first.content
    assert lesson in str(model_server.calls[1].body)
    assert (second.content, second.is_error) == ("right", False)


@pytest.mark.parametrize("given", ['{"text": "a", "count": "2"}', '"{\\"text\\": \\"a\\", \\"count\\": 2}"'])
async def test_input_in_quotes_is_taken_for_what_it_means(
    driver: Driver, model_server: ModelServer, given: str
) -> None:
    model_server.on(rounds([PlannedCall("peek", given)]))
    session = await driver.kedge.session()
    await driver.ask("go", session)
    assert [result.content for result in await results(driver, session)] == ["aa"]


async def test_calls_that_were_cut_off_are_not_run(
    driver: Driver, model_server: ModelServer, fake_tools: FakeTools
) -> None:
    cut = Plan(text="", tool_calls=(call("poke", text="whole"), PlannedCall("poke", '{"text": "ha')), finish="length")
    model_server.on([cut, Plan(text="smaller")])
    session = await driver.kedge.session()
    assert (await driver.ask("go", session)).text == "smaller"
    assert fake_tools.log == ["poke whole begins", "poke whole ends"]
    assert "cut off at the output limit" in (await results(driver, session))[1].content


async def test_calls_of_an_attempt_that_failed_are_never_run(
    driver: Driver, model_server: ModelServer, fake_tools: FakeTools
) -> None:
    calls = (call("poke", text="a"), call("poke", text="b"))
    model_server.next_plans = [Plan(text="", tool_calls=calls, drop_after=2), Plan(text="instead")]
    session = await driver.kedge.session()
    assert (await driver.ask("go", session)).text == "instead"
    assert fake_tools.log == []
    assert await driver.assistant_messages(session) == [("", "interrupted"), ("instead", "end_turn")]


async def test_results_are_bounded_and_valid(driver: Driver, model_server: ModelServer, fake_tools: FakeTools) -> None:
    model_server.on(rounds([call("flood", text="x", count=20)], [call("picture", text="", count=20)]))
    session = await driver.kedge.session()
    assert (await driver.ask("go", session)).error is None
    flood, pictures = [message for message in await driver.kedge.messages(session) if message.role == "tool"]
    (result,) = [part for part in flood.parts if isinstance(part, ToolResult)]
    assert len(result.content) < MAX_CHARS + 100
    assert "characters are left out" in result.content
    shown = [frame.event.payload for frame in driver.kedge.watcher.frames]
    live = [delta for delta in shown if isinstance(delta, Delta) and delta.kind == "tool_output"]
    assert 0 < sum(len(delta.text) for delta in live) <= MAX_SHOWN_CHARS
    assert sum(isinstance(part, Image) for part in pictures.parts) == MAX_IMAGES


async def test_what_a_tool_says_for_programs_is_kept_as_it_is(kedge: Kedge, model_server: ModelServer) -> None:
    metadata = {"exit_code": 0, "is_cut": True, "rate": 0.5, "nothing": None, "lines": [1, {"text": "a"}]}

    async def run(_ctx: ToolContext, _params: Params) -> Output:
        return Output(content="", metadata=metadata)

    telling = make_tool("telling", run)
    model_server.on(rounds([call("telling", text="a")]))
    async with Driver(kedge, model_server.base_url, tools=[telling]) as driver:
        session = await kedge.session()
        assert (await driver.ask("go", session)).error is None
        (result,) = await results(driver, session)
    assert result.metadata == metadata


async def test_what_a_run_saw_of_files_is_known_to_its_later_calls(
    kedge: Kedge, driver: Driver, model_server: ModelServer, fake_tools: FakeTools
) -> None:
    model_server.on(rounds([call("peek", text="/a")], [call("poke", text="/b")]))
    session = await kedge.session()
    await driver.ask("go", session)
    assert dict(fake_tools.contexts[0].known_files) == {"/a": "digest of /a", "/b": "digest of /b"}
    async with Driver(kedge, model_server.base_url, tools=fake_tools.tools) as other:  # as after a restart
        model_server.on(rounds([call("peek", text="/c")]), prompt="on")
        await other.ask("on", session)
    assert set(fake_tools.contexts[-1].known_files) == {"/a", "/b", "/c"}


async def test_a_call_works_in_the_place_of_its_run(
    driver: Driver, model_server: ModelServer, fake_tools: FakeTools
) -> None:
    model_server.on(rounds([call("peek", text="a")]))
    env = {**environ("chat", model_server, KEY), "MINE": "1", "KEDGE_TOKEN": "not for tools"}
    session = await driver.kedge.session()
    end = await driver.ask("go", session, env=env)
    (place,) = fake_tools.contexts
    assert (place.session_id, place.run_id) == (session, end.run_id)
    assert place.directory == driver.kedge.data.parent / "workspace"
    assert place.env["MINE"] == "1"
    assert "KEDGE_TOKEN" not in place.env
    assert place.scratch.is_relative_to(driver.kedge.data)


async def test_prompts_join_between_the_rounds(
    driver: Driver, model_server: ModelServer, fake_tools: FakeTools
) -> None:
    model_server.next_plans = [*rounds([call("poke", text="a", gate="a")], text="for both")]
    session = await driver.kedge.session()
    host = await driver.kedge.send(session, "first")
    async with asyncio.timeout(LIMIT_S):
        await fake_tools.gates.reached("a")
    guest = await driver.kedge.send(session, "second", on_busy="steer")
    fake_tools.gates.open("a")
    ends = await driver.kedge.ends(host.run_id, guest.run_id)
    assert [end.text for end in ends] == ["for both", "for both"]
    sent = model_server.calls[-1].body["messages"]
    assert [message["role"] for message in sent] == ["system", "user", "assistant", "tool", "user"]


async def test_a_sub_agent_reads_and_reports(driver: Driver, model_server: ModelServer) -> None:
    model_server.on(rounds([call("helper", text="find it")]), prompt="go")
    model_server.on([Plan(text="it is there", output_tokens=50)], prompt="find it")
    session = await driver.kedge.session()
    end = await driver.ask("go", session)
    assert [result.content for result in await results(driver, session)] == ["it is there"]
    assert end.usage == Usage(input_tokens=30, output_tokens=52)
    child = next(made.body for made in model_server.calls if "find it" in str(made.body["messages"][-1]))
    assert {tool["function"]["name"] for tool in child["tools"]} == {"peek", "look", "picture", "helper"}
    assert "sub-agent" in child["messages"][0]["content"]


class TestPermissions:
    async def test_an_allowed_call_goes_on(
        self, driver: Driver, model_server: ModelServer, fake_tools: FakeTools
    ) -> None:
        model_server.on(rounds([call("risk", text="a")]))
        receipt = await driver.kedge.send(await driver.kedge.session(), "go")
        request = await driver.kedge.asked()
        assert isinstance(request, PermissionRequest)
        assert (request.tool, request.action, request.description) == ("risk", "execute", "risk a")
        assert fake_tools.log == []
        await self.answer(driver, request.id, "allow")
        assert (await driver.kedge.end(receipt.run_id)).text == "done"
        assert fake_tools.log == ["risk a begins", "risk a ends"]

    async def test_leave_for_one_path_is_none_for_where_a_link_leads_later(
        self, kedge: Kedge, model_server: ModelServer, tmp_path: Path
    ) -> None:
        outside = tmp_path / "outside"
        outside.mkdir()
        async with Driver(kedge, model_server.base_url, tools=[WRITE]) as driver:
            place = kedge.data.parent / "workspace" / "place"
            place.mkdir()
            model_server.on(rounds([call("write", path="place/new.txt", content="x")]))
            session = await kedge.session()
            receipt = await kedge.send(session, "go")
            request = await kedge.asked()
            place.rmdir()
            place.symlink_to(outside)
            await self.answer(driver, request.id, "allow")
            assert (await kedge.end(receipt.run_id)).text == "done"
            assert "changed meanwhile" in (await results(driver, session))[0].content
            assert list(outside.iterdir()) == []

    async def test_a_persons_no_ends_the_turn(
        self, driver: Driver, model_server: ModelServer, fake_tools: FakeTools
    ) -> None:
        model_server.on(rounds([call("peek", text="before"), call("risk", text="a"), call("poke", text="after")]))
        session = await driver.kedge.session()
        receipt = await driver.kedge.send(session, "go")
        await self.answer(driver, (await driver.kedge.asked()).id, "deny")
        end = await driver.kedge.end(receipt.run_id)
        assert (end.error, end.cancelled) == (None, False)
        assert len(model_server.calls) == 1
        assert fake_tools.log == ["peek before begins", "peek before ends"]
        told = await results(driver, session)
        assert [result.is_error for result in told] == [False, True, True]
        assert told[1].metadata == {"denied": "tester"}
        model_server.on([Plan(text="sorry")], prompt="not that")
        assert (await driver.ask("not that", session)).text == "sorry"

    async def test_a_no_with_a_reason_is_told_to_the_model_and_the_turn_goes_on(
        self, driver: Driver, model_server: ModelServer, fake_tools: FakeTools
    ) -> None:
        model_server.on(rounds([call("risk", text="a"), call("poke", text="after")], [call("poke", text="instead")]))
        session = await driver.kedge.session()
        receipt = await driver.kedge.send(session, "go")
        await self.answer(driver, (await driver.kedge.asked()).id, "deny", reason="use poke instead")
        assert (await driver.kedge.end(receipt.run_id)).text == "done"
        assert fake_tools.log == ["poke after begins", "poke after ends", "poke instead begins", "poke instead ends"]
        told = (await results(driver, session))[0]
        assert (told.is_error, told.metadata) == (True, {"denied": "tester", "reason": "use poke instead"})
        assert "use poke instead" in told.content
        assert told.content in str(model_server.calls[1].body["messages"][-2:])

    async def test_one_no_ends_also_what_still_waits_beside_it(
        self, driver: Driver, model_server: ModelServer, fake_tools: FakeTools
    ) -> None:
        model_server.on(rounds([call("look", text="a"), call("look", text="b")]))
        receipt = await driver.kedge.send(await driver.kedge.session(), "go")
        await self.answer(driver, (await driver.kedge.asked()).id, "deny")
        assert (await driver.kedge.end(receipt.run_id)).error is None
        assert fake_tools.log == []
        assert await driver.kedge.permissions() == []

    async def test_a_run_that_nobody_watches_works_around_a_refusal(
        self, driver: Driver, model_server: ModelServer, fake_tools: FakeTools
    ) -> None:
        model_server.on(rounds([call("risk", text="a")], [call("poke", text="b")]))
        session = await driver.kedge.session()
        end = await driver.ask("go", session, permissions="deny")
        assert (end.text, end.error) == ("done", None)
        assert fake_tools.log == ["poke b begins", "poke b ends"]
        assert (await results(driver, session))[0].metadata == {"refused": "unattended"}
        assert "Nobody is there" in model_server.calls[0].body["messages"][0]["content"]

    async def test_what_is_allowed_beforehand_is_not_asked(self, driver: Driver, model_server: ModelServer) -> None:
        model_server.on(rounds([call("risk", text="a")]))
        assert (await driver.ask("go", permissions="allow")).text == "done"
        assert await driver.kedge.permissions() == []

    async def answer(self, driver: Driver, request_id: str, action: str, reason: str | None = None) -> None:
        kedge, answer = driver.kedge, Answer(action=action, by="tester", reason=reason)
        await kedge.store.answer(kedge.workspace_id, "permission", request_id, answer)


def _is_result(payload: object, content: str) -> bool:
    if not isinstance(payload, MessageOf):
        return False
    parts = cast("Message", payload).parts
    return any(isinstance(part, ToolResult) and part.content == content for part in parts)


def _unmarked(value: Any) -> Any:
    """Without the marks for the provider's cache: they move with the end of the conversation."""
    match value:
        case {**fields}:
            return {name: _unmarked(each) for name, each in fields.items() if name != "cache_control"}
        case [*items]:
            return [_unmarked(item) for item in items]
        case _:
            return value


async def test_a_call_touches_the_path_that_was_judged_wherever_a_link_leads_by_then(
    kedge: Kedge, model_server: ModelServer, tmp_path: Path
) -> None:
    directory = kedge.data.parent / "workspace"
    (directory / "inside").mkdir(parents=True)
    (directory / "inside/a.txt").write_text("harmless\n")
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "a.txt").write_text("secret\n")
    link = directory / "link"

    def swapped(tool: Tool) -> Tool:
        async def list_access(place: ToolScope, params: Any) -> Sequence[Access]:
            link.unlink(missing_ok=True)
            link.symlink_to("inside")
            assert tool.list_access is not None
            wanted = await tool.list_access(place, params)
            link.unlink()
            link.symlink_to(outside)
            return wanted

        return msgspec.structs.replace(tool, list_access=list_access)

    model_server.on(
        rounds(
            [call("view", path="link/a.txt")],
            [call("grep", pattern=".", path="link")],
            [call("write", path="link/b.txt", content="new")],
        )
    )
    async with Driver(kedge, model_server.base_url, tools=[swapped(tool) for tool in (VIEW, GREP, WRITE)]) as driver:
        session = await kedge.session()
        await driver.ask("go", session, permissions="allow")
    viewed, found, written = await results(driver, session)
    assert "harmless" in viewed.content
    assert "harmless" in found.content
    assert "Created inside/b.txt" in written.content
    assert [path.name for path in outside.iterdir()] == ["a.txt"]


def has_result(event: Event, content: str) -> bool:
    parts = event.payload.parts if isinstance(event.payload, MessageOf) else []
    return any(isinstance(part, ToolResult) and part.content == content for part in parts)


async def test_ten_calls_run_side_by_side_and_the_eleventh_waits(
    driver: Driver, model_server: ModelServer, fake_tools: FakeTools
) -> None:
    model_server.on(rounds([call("peek", text=f"{i}", gate=f"gate {i}") for i in range(11)]))
    session = await driver.kedge.session()
    receipt = await driver.kedge.send(session, "go")
    async with asyncio.timeout(LIMIT_S):
        for i in range(10):
            await fake_tools.gates.reached(f"gate {i}")
    for i in range(9):
        fake_tools.gates.open(f"gate {i}")
        await driver.kedge.seen(lambda event, i=i: has_result(event, f"{i}"))
    assert "peek 10 begins" not in fake_tools.log
    for i in (9, 10):
        fake_tools.gates.open(f"gate {i}")
    assert (await driver.kedge.end(receipt.run_id)).text == "done"
    assert [result.content for result in await results(driver, session)] == [str(i) for i in range(11)]
