"""Does an engine keep something of every run it ever had?

Goal: after 10,000 runs it holds at most 1.3x the memory it held after 1,000. The ring is full by then in both cases.
"""

from __future__ import annotations

import asyncio

from measure import MIB, answer, noise_told, play, print_table, rss_bytes, running_engine

SESSIONS = 20
STOPS = (100, 1_000, 5_000, 10_000)
BASE = 1_000


async def main() -> None:
    with noise_told():
        sizes: dict[int, int] = {}
        async with running_engine(answer) as (engine, workspace):
            sessions = [await engine.create_session(workspace.id) for _ in range(SESSIONS)]
            done = 0
            for stop in STOPS:
                while done < stop:
                    await asyncio.gather(*(play(engine, workspace.id, session.id) for session in sessions))
                    done += SESSIONS
                sizes[stop] = rss_bytes()
        names = {stop: f"after {stop:,} runs{' (baseline)' if stop == BASE else ''}" for stop in STOPS}
        rows = [[names[stop], f"{size / MIB:.1f}", f"{size / sizes[BASE]:.2f}"] for stop, size in sizes.items()]
        print_table(f"memory of one engine, {SESSIONS} sessions", ["", "MiB", "x baseline"], rows)


if __name__ == "__main__":
    asyncio.run(main())
