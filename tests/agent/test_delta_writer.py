"""Deltas become parts: each block its own, in the order in which they began, whatever comes in between (P12)."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from kedge.agent.step import DeltaWriter
from kedge.models.values import BlockEnd, Delta, ReasoningDelta, StepEnd, TextDelta, ToolCallDelta, UsageReport
from kedge.protocol.messages import Finish, Part, Reasoning, Text, ToolCall
from kedge.protocol.runs import Usage
from tests.support.bench import Bench


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncGenerator[Bench]:
    async with Bench(tmp_path) as bench:
        yield bench


async def written(bench: Bench, *groups: list[Delta]) -> tuple[DeltaWriter, list[Part]]:
    """The answer, and its parts when it is finished, without the finish."""
    session = await bench.session()
    turn_writer = await bench.start(session)
    answer = DeltaWriter(await bench.message(turn_writer))
    for deltas in groups:
        await answer.write(deltas)
    await answer.finish(Usage())
    *parts, finish = await bench.parts(session)
    assert isinstance(finish, Finish)
    return answer, parts


async def test_interleaved_calls_are_told_apart(bench: Bench) -> None:
    _, parts = await written(
        bench,
        [TextDelta("look"), ToolCallDelta("0", "a", "grep", '{"x'), ToolCallDelta("1", "b", "ls", "{")],
        [ToolCallDelta("0", input='": 1}'), ToolCallDelta("1", input="}"), StepEnd("tool_use")],
    )
    assert parts == [Text("look"), ToolCall("a", "grep", '{"x": 1}', True), ToolCall("b", "ls", "{}", True)]


async def test_interleaved_texts_of_a_wire_that_tells_them_apart_are_whole(bench: Bench) -> None:
    _, parts = await written(
        bench, [TextDelta("a1", "0"), TextDelta("b1", "1")], [TextDelta("a2", "0"), BlockEnd("0"), TextDelta("b2", "1")]
    )
    assert parts == [Text("a1a2"), Text("b1b2")]


async def test_a_wire_with_one_block_of_each_kind_begins_a_part_at_each_change(bench: Bench) -> None:
    _, parts = await written(
        bench, [ReasoningDelta("hm"), TextDelta("so")], [ReasoningDelta("but"), TextDelta("yes"), TextDelta("!")]
    )
    assert parts == [Reasoning("hm"), Text("so"), Reasoning("but"), Text("yes!")]


async def test_signatures_are_joined_and_what_is_redacted_is_kept(bench: Bench) -> None:
    _, parts = await written(
        bench,
        [ReasoningDelta("h\ud83d", "0"), ReasoningDelta(block="0", signature="si")],
        [ReasoningDelta(block="0", signature="gned"), BlockEnd("0")],
        [ReasoningDelta(block="1", signature="secret", redacted=True)],
    )
    assert parts == [Reasoning("h\ufffd", "signed"), Reasoning("", "secret", redacted=True)]


async def test_a_block_that_ended_is_stored_before_the_step_ends(bench: Bench) -> None:
    session = await bench.session()
    turn_writer = await bench.start(session)
    answer = DeltaWriter(await bench.message(turn_writer))
    await answer.write([ToolCallDelta("0", "a", "ls", "{}"), BlockEnd("0"), TextDelta("more", "1")])
    assert await bench.parts(session) == [ToolCall("a", "ls", "{}", True)]
    await answer.finish(Usage())


async def test_every_call_has_an_id_of_its_own(bench: Bench) -> None:
    _, parts = await written(
        bench,
        [ToolCallDelta("0", "same", "ls"), ToolCallDelta("1", "same", "ls"), ToolCallDelta("2", "", "ls")],
        [ToolCallDelta("3", "x", "", "lost")],
    )
    ids = [part.id for part in parts if isinstance(part, ToolCall)]
    assert len(set(ids)) == 3
    assert ids[0] == "same"
    assert all(ids)


async def test_a_later_report_replaces_what_it_has(bench: Bench) -> None:
    answer, _ = await written(
        bench,
        [UsageReport(input_tokens=10, output_tokens=1, cache_read_tokens=5)],
        [UsageReport(output_tokens=7), StepEnd("end_turn")],
    )
    assert answer.usage == UsageReport(input_tokens=10, output_tokens=7, cache_read_tokens=5)
