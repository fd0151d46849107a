"""Text in flight: appended piece by piece, never written anew, folded into its part, kept by a crash (P12)."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from kedge.engine import message_writer
from kedge.engine.turn import TurnContext
from kedge.protocol.messages import Finish, Reasoning, Text, ToolCall, ToolResult
from kedge.store.port import Claim, Draft, Outcome
from tests.store.stores import Place, opened
from tests.support.harness import Kedge
from tests.support.stores import Sqlite


@pytest.fixture
async def place(tmp_path: Path) -> AsyncGenerator[Place]:
    async with opened(tmp_path) as place:
        yield place


def drafts(place: Place) -> list[tuple[int, bytes]]:
    return [tuple(row) for row in place.store._db.execute("SELECT part, text FROM drafts ORDER BY id")]


async def begin(place: Place) -> tuple[Claim, str]:
    started = await place.start("run-1")
    return started.claim, (await place.store.create_message(started.claim, "assistant")).id


async def test_pieces_are_only_ever_appended(place: Place) -> None:
    """A rewrite of the whole text for every piece would cost quadratic writes."""
    claim, message_id = await begin(place)
    statements: list[str] = []
    place.store._db.set_trace_callback(lambda sql: statements.append(sql) if "drafts" in sql else None)
    for number in range(50):
        await place.store.append_drafts(claim, [Draft(message_id, 0, "text", f"{number} ", Text(""))])
    place.store._db.set_trace_callback(None)
    assert len(statements) == 50
    assert all(sql.startswith("INSERT INTO drafts") for sql in statements)
    assert len(max(statements, key=len)) < 300, "each piece alone, not what came before it"


async def test_a_finished_part_takes_its_pieces_away_and_leaves_those_of_others(place: Place) -> None:
    claim, message_id = await begin(place)
    pieces = [Draft(message_id, part, "text", f"{part}", Text("")) for part in (0, 0, 1)]
    await place.store.append_drafts(claim, pieces)
    await place.store.finish_parts(claim, message_id, 0, [Text("00")])
    assert drafts(place) == [(1, b"1")]
    await place.store.finish_parts(claim, message_id, 1, [Text("1"), Finish("end_turn")])
    assert drafts(place) == []


async def test_a_piece_that_comes_after_its_part_is_finished_is_not_kept(place: Place) -> None:
    claim, message_id = await begin(place)
    await place.store.finish_parts(claim, message_id, 0, [Text("whole")])
    await place.store.append_drafts(claim, [Draft(message_id, 0, "text", "late", Text(""))])
    assert drafts(place) == []


async def test_a_crash_folds_what_was_in_flight_into_its_message(place: Place) -> None:
    claim, message_id = await begin(place)
    await place.store.finish_parts(claim, message_id, 0, [Reasoning("thought", "signed")])
    pieces = [
        Draft(message_id, 1, "text", "half 🌍", Text("")),
        Draft(message_id, 2, "tool_input", '{"a":', ToolCall("c", "bash", "", False)),
        Draft(message_id, 1, "text", " a wörd"),
        Draft(message_id, 2, "tool_input", "1"),
    ]
    for piece in pieces:
        await place.store.append_drafts(claim, [piece])
    await place.store.recover()
    messages = (await place.store.messages(place.workspace_id, place.session_id)).messages
    assert messages[-1].parts == [
        Reasoning("thought", "signed"),
        Text("half 🌍 a wörd"),
        ToolCall("c", "bash", '{"a":1', False),
        Finish("interrupted"),
    ]
    assert drafts(place) == []


async def test_output_of_a_tool_in_flight_is_kept_before_the_note(place: Place) -> None:
    claim, message_id = await begin(place)
    call = ToolCall("c", "bash", "{}", True)
    await place.store.finish_parts(claim, message_id, 0, [call, Finish("tool_use")])
    tool = await place.store.create_message(claim, "tool", call=(message_id, "c", "bash"))
    head = ToolResult("c", "bash", "", False)
    await place.store.append_drafts(claim, [Draft(tool.id, 0, "tool_output", "so far", head)])
    await place.store.cancel_run(place.workspace_id, "run-1")
    await place.store.finish(claim, Outcome("cancelled"))
    results = [
        (part.content, part.is_error)
        for message in (await place.store.messages(place.workspace_id, place.session_id)).messages
        for part in message.parts
        if isinstance(part, ToolResult)
    ]
    assert results == [
        ("so far\nInterrupted: the run was canceled while this call was running. It may have had effects.", True)
    ]
    assert drafts(place) == []


async def test_an_answer_of_10000_deltas_is_stored_in_at_most_4_times_its_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(message_writer, "DRAFT_S", 0.005)  # many more drafts than a real answer makes
    words = [f"word {number:05} of a long answer, and on it goes. " for number in range(10_000)]

    async def answer(ctx: TurnContext) -> None:
        message = await ctx.begin_message(model="test")
        part = message.open(Text(""))
        for number, word in enumerate(words):
            part.write(word)
            if number % 100 == 0:
                await ctx.history()  # lets time pass
        await message.finish("end_turn")

    async with Kedge(Sqlite(), tmp_path) as kedge:
        kedge.turns["prompt"] = answer
        session = await kedge.session()
        empty = await kedge.stored_bytes()
        await kedge.send(session, "go", "run-1")
        text = (await kedge.end("run-1")).text
        assert text == "".join(words)
        assert await kedge.stored_bytes() - empty <= 4 * len(text.encode())
