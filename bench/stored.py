"""How many bytes does the store hold for what a run said?

Goal: at most 4x the final content, after a truncating checkpoint, for an answer of 10,000 deltas (P12).
"""

from __future__ import annotations

import asyncio

from measure import noise_told, play, print_table, running_engine

from kedge.engine.engine import Engine
from kedge.engine.turn import Turn, TurnContext
from kedge.protocol.messages import Text, ToolCall
from kedge.store.sqlite.store import SqliteStore

DELTAS = 10_000
STREAM_S = 5.0  # long enough for many drafts to be kept on the way
CALLS = 10
CALL_INPUT = "a tool call's input, some two hundred bytes of JSON " * 4
CALL_OUTPUT = "a tool call's output, a screenful of text in all " * 40
WORD = "word, "
PROMPT = "A prompt of a megabyte. " * (1024 * 1024 // 24)


async def long_answer(ctx: TurnContext) -> None:
    message = await ctx.begin_message()
    text = message.open(Text(""))
    for i in range(DELTAS):
        text.write(WORD)
        if i % 20 == 0:
            await asyncio.sleep(STREAM_S / DELTAS * 20)
    await message.finish("end_turn")


async def silence(ctx: TurnContext) -> None:
    del ctx


async def ten_calls(ctx: TurnContext) -> None:
    message = await ctx.begin_message()
    await message.add(Text("First I look around. " * 20))
    for i in range(CALLS):
        await message.add(ToolCall(f"call-{i}", "look", CALL_INPUT, True))
    await message.finish("tool_use")
    for i in range(CALLS):
        tool = await ctx.begin_tool_result(message.id, f"call-{i}", "look")
        tool.write(CALL_OUTPUT)
        await tool.finish(CALL_OUTPUT)


async def main() -> None:
    spoken = len("First I look around. ") * 20 + CALLS * (len(CALL_INPUT) + len(CALL_OUTPUT))
    with noise_told():
        rows = [
            await measured(f"an answer of {DELTAS:,} deltas", long_answer, "Write.", DELTAS * len(WORD)),
            await measured("a prompt of 1 MB, no answer", silence, PROMPT, len(PROMPT)),
            await measured(f"text, {CALLS} tool calls and their results", ten_calls, "Look.", spoken),
        ]
        header = ["", "content KiB", "stored KiB", "x content (baseline)", "x before checkpoint"]
        print_table("bytes stored for one run", header, rows)


async def measured(name: str, turn: Turn, prompt: str, content: int) -> list[str]:
    async with running_engine(turn) as (engine, workspace):
        session = await engine.create_session(workspace.id)
        before = await settled_bytes(engine)
        await play(engine, workspace.id, session.id, prompt)
        unsettled = await engine.store.size_bytes() - before
        stored = await settled_bytes(engine) - before
    sizes = [f"{content / 1024:.0f}", f"{stored / 1024:.0f}", f"{stored / content:.2f}", f"{unsettled / content:.2f}"]
    return [name, *sizes]


async def settled_bytes(engine: Engine) -> int:
    assert isinstance(engine.store, SqliteStore)
    await engine.store.checkpoint()
    return await engine.store.size_bytes()


if __name__ == "__main__":
    asyncio.run(main())
