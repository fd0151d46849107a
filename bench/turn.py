"""How long is it from a prompt to its end when the model answers at once, and does it stay so over 500 prompts?

Goal: p50 ≤ 25 ms, flat. The turn reads its history, as an agent does, and writes one message.
"""

from __future__ import annotations

import asyncio

from measure import Samples, answer, noise_told, play, print_latencies, running_engine

from kedge.engine.turn import TurnContext

PROMPTS = 500
WINDOW = 100


async def answer_with_history(ctx: TurnContext) -> None:
    await ctx.history()
    await answer(ctx)


async def main() -> None:
    with noise_told():
        every, plain = Samples("all"), Samples("plain")
        async with (
            running_engine(answer_with_history) as (engine, workspace),
            running_engine(answer) as (other, elsewhere),
        ):
            session = await engine.create_session(workspace.id)
            without = await other.create_session(elsewhere.id)
            await play(other, elsewhere.id, without.id)  # warm
            for _ in range(PROMPTS):
                with plain.timed():
                    await play(other, elsewhere.id, without.id)
                with every.timed():
                    await play(engine, workspace.id, session.id)
        first = Samples(f"prompts 1 to {WINDOW} (baseline)", every.seconds[:WINDOW])
        last = Samples(f"prompts {PROMPTS - WINDOW + 1} to {PROMPTS}", every.seconds[-WINDOW:])
        plain_first = Samples("the first, turn reads no history", plain.seconds[:WINDOW])
        plain_last = Samples("the last, turn reads no history", plain.seconds[-WINDOW:])
        print_latencies(f"prompt → end, {PROMPTS} prompts in one session", [first, last, plain_first, plain_last])


if __name__ == "__main__":
    asyncio.run(main())
