"""How long does an accept take until it is durable, and does it grow with the session or with the store?

Goal: p50 ≤ 3 ms and p99 ≤ 15 ms with one caller, unchanged after 1,000 prompts in the session and with 10,000 sessions.
"""

from __future__ import annotations

import asyncio

from measure import Samples, answer, bare_database, noise_told, play, print_latencies, running_engine

from kedge.engine.engine import Engine
from kedge.protocol.runs import Submission

SAMPLES = 500
PROMPTS = 1_000
SESSIONS = 10_000


async def main() -> None:
    bare = Samples("bare INSERT + COMMIT (baseline)")
    fresh, long = Samples("accept, new session"), Samples(f"accept, session of {PROMPTS:,} prompts")
    many = Samples(f"accept, store of {SESSIONS:,} sessions")
    with noise_told(), bare_database() as db:
        async with running_engine(answer) as (small, near), running_engine(answer) as (large, far):
            old_session = (await small.create_session(near.id)).id
            for _ in range(PROMPTS):
                await play(small, near.id, old_session)
            for _ in range(SESSIONS // 100):
                await asyncio.gather(*(large.create_session(far.id, "one of many") for _ in range(100)))
            for _ in range(SAMPLES):
                with bare.timed():
                    db.execute("BEGIN IMMEDIATE")
                    db.execute("INSERT INTO events (body) VALUES (?)", (b"x" * 300,))
                    db.execute("COMMIT")
                await timed_accept(fresh, small, near.id, (await small.create_session(near.id)).id)
                await timed_accept(long, small, near.id, old_session)
                await timed_accept(many, large, far.id, (await large.create_session(far.id)).id)
        print_latencies(f"accept, one caller, {SAMPLES} samples each", [bare, fresh, long, many])


async def timed_accept(samples: Samples, engine: Engine, workspace_id: str, session_id: str) -> None:
    """Only the accept is timed; its run ends before the next sample."""
    with samples.timed():
        receipt = await engine.runs.accept(workspace_id, Submission(session_id=session_id, prompt="Do it."))
    await engine.runs.wait_end(workspace_id, receipt.run_id)


if __name__ == "__main__":
    asyncio.run(main())
