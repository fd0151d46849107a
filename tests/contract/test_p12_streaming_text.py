"""P12: streaming text is exact and cheap."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

import pytest

from kedge.engine import message_writer
from kedge.engine.turn import Turn, TurnContext
from kedge.protocol.messages import Delta, Finish, MessageOf, Reasoning, Text, ToolCall, finish_of, text_of
from kedge.protocol.requests import PermissionRequest
from tests.support.harness import Kedge
from tests.support.reader import LIMIT_S, Reader

HARD = "a\U0001f600b\u2028c\u2029d\x00e\x85f\r\ng\u0301h\ufeffi\U0010ffffj"


def speaking(pieces: Sequence[str], kedge: Kedge | None = None, pace: asyncio.Semaphore | None = None) -> Turn:
    async def speak(ctx: TurnContext) -> None:
        message = await ctx.begin_message()
        text = message.open(Text(""))
        for piece in pieces:
            text.write(piece)
            await (asyncio.sleep(0) if pace is None else pace.acquire())
        if kedge is not None:
            await kedge.gates.wait("go")
        await message.finish("end_turn")

    return speak


async def say(kedge: Kedge, pieces: Sequence[str]) -> tuple[str, list[Delta]]:
    """What the run's end says, and the deltas that led to it."""
    kedge.turns["prompt"] = speaking(pieces)
    await kedge.send(await kedge.session(), "go", "r")
    end = await kedge.end("r")
    await kedge.seen(lambda event: event.type == "run_complete")
    assert end.message_id is not None
    assert kedge.watcher.texts[end.message_id][0] == end.text
    deltas = [frame.event.payload for frame in kedge.watcher.frames]
    return end.text, [delta for delta in deltas if isinstance(delta, Delta)]


async def test_deltas_say_where_they_belong_in_code_points(kedge: Kedge) -> None:
    text, deltas = await say(kedge, ["\U0001f600", "a\U0001f601", "é", "\U0001f468\u200d\U0001f469", "z"])
    assert text == "\U0001f600a\U0001f601é\U0001f468\u200d\U0001f469z"
    assert [delta.offset for delta in deltas] == [0, 1, 3, 4, 7]
    assert {(delta.part, delta.kind, delta.run_id) for delta in deltas} == {(0, "text", "r")}


@pytest.mark.parametrize(
    ("pieces", "text"),
    [
        (["x\ud83d", "\ude00y"], "x\U0001f600y"),
        (["\ud83d", "", "\ude00"], "\U0001f600"),
        (["\ud83d\ude00"], "\U0001f600"),
        (["\ud83d", "x"], "\ufffdx"),
        (["\ud83d", "\ud83d", "\ude00"], "\ufffd\U0001f600"),
        (["x\ude00y"], "x\ufffdy"),
        (["\ude00\ud83d"], "\ufffd\ufffd"),
        (["end \ud83d"], "end \ufffd"),
        ([*HARD], HARD),
        ([HARD, HARD], HARD + HARD),
        ([""], ""),
        (["\ufeffbom"], "\ufeffbom"),
        (["\ufeff\ud83d", "\ude00"], "\ufeff\U0001f600"),
    ],
    ids=range(13),
)
async def test_any_text_arrives_exactly(kedge: Kedge, pieces: list[str], text: str) -> None:
    said, deltas = await say(kedge, pieces)
    assert said == text
    offset = 0
    for delta in deltas:
        assert delta.offset == offset
        assert not any("\ud800" <= char <= "\udfff" for char in delta.text)
        offset += len(delta.text)
    assert offset == len(text)


async def test_half_a_character_anywhere_else_is_mended_too_and_fails_nothing(kedge: Kedge) -> None:
    """Names of files need not be valid Unicode, and tools speak of them."""
    name = "caf\udce9"

    async def listing(ctx: TurnContext) -> None:
        message = await ctx.begin_message()
        await message.add(Text(name))
        await message.add(ToolCall("call-0", "ls", name, True))
        await message.finish("tool_use", message=name)
        await ctx.append_event("notice", message=name)
        await ctx.ask_permission(
            *(message.id, "call-0"), tool="ls", action="read", description=name, params={name: [name]}, path=name
        )
        tool = await ctx.begin_tool_result(message.id, "call-0", "ls")
        tool.write(name)
        await tool.finish(name, metadata={"files": [name]})

    kedge.turns["prompt"] = listing
    session_id = await kedge.session()
    await kedge.send(session_id, "go", "r")
    request = await kedge.asked()
    assert isinstance(request, PermissionRequest)
    assert (request.path, request.params) == ("caf\ufffd", {"caf\ufffd": ["caf\ufffd"]})
    await kedge.engine.answer_permission(kedge.workspace_id, request.id, "allow", "tui")
    end = await kedge.end("r")
    assert (end.text, end.error) == ("caf\ufffd", None)
    assert [result.content for result in await kedge.results(session_id)] == ["caf\ufffd"]


async def test_parts_of_every_kind_are_streamed_side_by_side_and_only_grow(kedge: Kedge) -> None:
    async def thinking(ctx: TurnContext) -> None:
        message = await ctx.begin_message()
        reasoning, text = message.open(Reasoning("")), message.open(Text(""))
        reasoning.write("hm, ")
        text.write("Well, ")
        await text.finish()  # waits for the part before it
        reasoning.write("yes")
        await reasoning.finish(Reasoning("hm, yes", signature="signed"))
        call = message.open(ToolCall("call-0", "bash", "", False))
        call.write('{"command":')
        call.write(' "ls"}')
        await message.finish("tool_use")
        tool = await ctx.begin_tool_result(message.id, "call-0", "bash")
        tool.write("a.txt\n")
        tool.write("b.txt\n")
        await tool.finish("a.txt\nb.txt\n")

    kedge.turns["prompt"] = thinking
    session_id = await kedge.session()
    await kedge.send(session_id, "go", "r")
    await kedge.end("r")
    _, assistant, tool = await kedge.messages(session_id)
    assert assistant.parts == [
        Reasoning("hm, yes", signature="signed"),
        Text("Well, "),
        ToolCall("call-0", "bash", '{"command": "ls"}', True),
        Finish("tool_use"),
    ]
    await kedge.seen(lambda event: event.type == "run_complete")
    deltas = [f.event.payload for f in kedge.watcher.frames if isinstance(f.event.payload, Delta)]
    assert {(delta.part, delta.kind) for delta in deltas if delta.message_id == assistant.id} == {
        *((0, "reasoning"), (1, "text"), (2, "tool_input"))
    }
    assert [(delta.offset, delta.kind) for delta in deltas if delta.message_id == tool.id] == [
        *((0, "tool_output"), (6, "tool_output"))
    ]


async def test_last_part_and_the_finish_are_one_event(kedge: Kedge) -> None:
    await kedge.send(await kedge.session(), "say a b c d e", "r")
    await kedge.end("r")
    shown = [e.payload for e in await kedge.log() if isinstance(e.payload, MessageOf) and e.payload.role == "assistant"]
    assert [[type(part) for part in message.parts] for message in shown] == [[], [Text, Finish]]


async def test_late_comer_gets_a_snapshot_and_deltas_go_on_from_there(kedge: Kedge) -> None:
    async def talking(ctx: TurnContext) -> None:
        message = await ctx.begin_message()
        await message.add(Reasoning("thought"))
        text = message.open(Text(""))
        text.write("before \U0001f600 ")
        await kedge.gates.wait("go")
        text.write("after")
        await message.finish("end_turn")

    kedge.turns["prompt"] = talking
    await kedge.send(await kedge.session(), "go", "r")
    await kedge.reached("go")
    late = Reader()
    task = asyncio.create_task(kedge.read(late))
    await late.event(lambda event: event.type == "caught_up")
    snapshot = late.frames[-2].event
    assert (snapshot.type, snapshot.seq, snapshot.change) == ("message", None, "updated")
    assert getattr(snapshot.payload, "parts", None) == [Reasoning("thought"), Text("before \U0001f600 ")]
    kedge.gates.open("go")
    end = await kedge.end("r")
    await late.event(lambda event: event.type == "run_complete")
    task.cancel()
    await asyncio.wait({task})
    deltas = [frame.event.payload for frame in late.frames if isinstance(frame.event.payload, Delta)]
    assert [(delta.part, delta.offset, delta.text) for delta in deltas] == [(1, 9, "after")]
    assert end.message_id is not None
    assert late.texts[end.message_id][1] == end.text == "before \U0001f600 after"


async def test_reader_that_reconnects_anywhere_gets_identical_text(kedge: Kedge) -> None:
    choice = random.Random(11)
    pieces = ["".join(choice.choices(HARD + "xyz ", k=choice.randint(1, 9))) for _ in range(600)]
    pace = asyncio.Semaphore(0)
    kedge.turns["prompt"] = speaking(pieces, kedge, pace)
    reader = Reader()
    await kedge.send(await kedge.session(), "go", "r")
    connections = 0
    while "run_complete" not in reader.types:
        connections += 1
        stream = kedge.engine.subscribe(kedge.workspace_id, after=reader.cursor, log_id=reader.log_id)
        async with asyncio.timeout(LIMIT_S):
            for _ in range(choice.randint(1, 40)):
                if "run_complete" not in reader.types:
                    for _ in range(choice.randint(1, 9)):
                        pace.release()
                    reader.take(await anext(stream))
                if any(parts.get(0) == "".join(pieces) for parts in reader.texts.values()):
                    kedge.gates.open("go")
    end = await kedge.end("r")
    assert connections > 3
    assert end.message_id is not None
    assert reader.texts[end.message_id][0] == end.text == "".join(pieces)


async def test_no_row_for_each_delta_and_at_most_4_times_the_content_is_stored(
    kedge: Kedge, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(message_writer, "DRAFT_S", 0.01)

    async def verbose(ctx: TurnContext) -> None:
        message = await ctx.begin_message()
        text = message.open(Text(""))
        for number in range(10_000):
            text.write(f"{number:04} this is a word of the answer ")
            if number % 100 == 0:
                await asyncio.sleep(0)
            if number % 2500 == 0:
                await asyncio.sleep(0.05)  # so that text in flight is kept several times
        await message.finish("end_turn")

    kedge.turns["prompt"] = verbose
    session_id = await kedge.session()
    empty = await kedge.stored_bytes()
    await kedge.send(session_id, "go", "r")
    end = await kedge.end("r")
    assert len(end.text) == 340_000
    assert len(await kedge.log()) < 12
    assert await kedge.stored_bytes() - empty <= 4 * len(end.text)


async def test_attempt_that_failed_finishes_its_message_as_interrupted_and_is_not_the_answer(kedge: Kedge) -> None:
    session_id = await kedge.session()
    await kedge.send(session_id, "retry half an ans; say the answer", "r")
    end = await kedge.end("r")
    _, first, second = await kedge.messages(session_id)
    assert [type(part) for part in first.parts] == [Text, Finish]
    assert (text_of(first.parts), finish_of(first.parts)) == ("half an ans", Finish("interrupted"))
    assert (end.message_id, end.text) == (second.id, "the answer")
    assert first.id not in [message.id for message in await kedge.history(session_id)]


async def test_text_is_never_taken_back_by_a_cancel(kedge: Kedge) -> None:
    """Whatever a watcher saw is in the message that is kept; the reader checks it at every event."""
    for number in range(20):
        session_id = await kedge.session()
        await kedge.send(session_id, "say a b c d e f; tool bash x y z; say g h", f"r{number}")
        await kedge.seen_run(f"r{number}", "running")
        for _ in range(number * 3):
            await asyncio.sleep(0)
        await kedge.cancel(session_id)
        end = await kedge.end(f"r{number}")
        await kedge.seen(lambda event, end=end: event.payload == end)
        for message in await kedge.messages(session_id):
            shown = kedge.watcher.texts[message.id]
            if message.role == "assistant":
                assert text_of(message.parts) == "".join(
                    shown.get(index, "") for index, part in enumerate(message.parts) if isinstance(part, Text)
                )


async def test_part_cannot_be_finished_with_another_text_than_was_shown(kedge: Kedge) -> None:
    async def forgetful(ctx: TurnContext) -> None:
        message = await ctx.begin_message()
        text = message.open(Text(""))
        text.write("hello")
        await text.finish(Text("bye"))

    kedge.turns["shell"] = forgetful
    await kedge.send(await kedge.session(), "go", "r", kind="shell")
    end = await kedge.end("r")
    assert (end.text, end.code) == ("hello", "internal")
