"""What does it cost to show 2,000 deltas to 1, 10 and 100 readers, and what do 200 readers that stopped change?

Goal: CPU grows with the bytes handed out, not with events x readers; stalled readers change the run's time by no more
than 10 %, and memory by what the ring may hold.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

from measure import MIB, Samples, noise_told, peak_rss_bytes, percentile, play, print_table, rss_bytes, running_engine

from kedge.engine.engine import Engine
from kedge.engine.turn import Turn, TurnContext
from kedge.protocol.messages import Text

DELTAS = 2_000
WORD = "fourteen bytes"
READERS = (1, 10, 100)
STALLED = 200
ROUNDS = 5
PACED_S = 2.0  # a fast model: 1,000 deltas a second


async def stream_at_once(ctx: TurnContext) -> None:
    await write_deltas(ctx, 0)


async def stream_paced(ctx: TurnContext) -> None:
    await write_deltas(ctx, PACED_S / DELTAS)


async def write_deltas(ctx: TurnContext, every_s: float) -> None:
    message = await ctx.begin_message()
    text = message.open(Text(""))
    clock = asyncio.get_running_loop().time
    began = clock()
    for i in range(DELTAS):
        text.write(WORD)
        await asyncio.sleep(max(0.0, began + (i + 1) * every_s - clock()))
    await message.finish("end_turn")


async def main() -> None:
    with noise_told():
        await fan_out("at full speed", stream_at_once, ROUNDS)
    with noise_told():
        await fan_out(f"over {PACED_S:.0f} s", stream_paced, 1)
    with noise_told():
        await stall()


async def fan_out(pace: str, turn: Turn, rounds: int) -> None:
    cpu = {readers: Samples(str(readers)) for readers in (0, *READERS)}
    sizes: dict[int, int] = {}
    for _ in range(rounds):
        for readers, samples in cpu.items():
            sizes[readers], cpu_s = await one_run(turn, readers)
            samples.seconds.append(cpu_s)
    alone = cpu[0].p50
    rows = [
        [
            f"{readers} readers" + (" (baseline)" if readers == 0 else ""),
            f"{sizes[readers] / MIB:.1f}",
            f"{samples.best:.3f}",
            f"{samples.p50:.3f}",
            f"{samples.p50 / alone:.1f}",
            f"{(samples.p50 - alone) / readers * 1e3:.1f}" if readers else "",
        ]
        for readers, samples in cpu.items()
    ]
    header = ["", "MiB out", "best CPU s", "p50 CPU s", "x baseline", "ms a reader"]
    print_table(f"{DELTAS:,} deltas {pace}, {rounds} rounds", header, rows)


async def one_run(turn: Turn, readers: int) -> tuple[int, float]:
    """Bytes that all readers got, and the CPU seconds of the whole process."""
    async with running_engine(turn) as (engine, workspace):
        session = await engine.create_session(workspace.id)
        tasks = [asyncio.create_task(read_to_end(engine.subscribe(workspace.id))) for _ in range(readers)]
        await asyncio.sleep(0)
        began = time.process_time()
        await play(engine, workspace.id, session.id)
        sizes = await asyncio.gather(*tasks)
        return sum(sizes), time.process_time() - began


async def read_to_end(frames: AsyncIterator[bytes]) -> int:
    size = 0
    async for chunk in frames:
        size += len(chunk)
        if b'"type":"run_complete"' in chunk:
            return size
    return size


async def stall() -> None:
    """The same run with and without readers that took their first frame and then nothing more."""
    times = {0: Samples("no stalled reader (baseline)"), STALLED: Samples(f"{STALLED} stalled readers")}
    grown: dict[int, list[float]] = {0: [], STALLED: []}
    for _ in range(ROUNDS * 2):
        for stalled, samples in times.items():
            async with running_engine(stream_at_once) as (engine, workspace):
                session = await engine.create_session(workspace.id)
                cursors = [await stalled_cursor(engine, workspace.id) for _ in range(stalled)]
                before = rss_bytes()
                with samples.timed():
                    await play(engine, workspace.id, session.id)
                grown[stalled].append(max(0, rss_bytes() - before) / MIB)
                assert len(cursors) == stalled
    base = times[0].p50
    rows = [
        [s.name, f"{s.best * 1e3:.0f}", f"{s.p50 * 1e3:.0f}", f"{s.p50 / base:.2f}", f"{percentile(grown[n], 50):.1f}"]
        for n, s in times.items()
    ]
    print_table(
        f"a run of {DELTAS:,} deltas beside stalled readers (peak of the process {peak_rss_bytes() / MIB:.0f} MiB)",
        ["", "best ms", "p50 ms", "x baseline", "MiB grown"],
        rows,
    )


async def stalled_cursor(engine: Engine, workspace_id: str) -> AsyncIterator[bytes]:
    frames = engine.subscribe(workspace_id)
    await anext(frames)
    return frames


if __name__ == "__main__":
    asyncio.run(main())
