"""How many transactions a second does the store take, from one writer and from fifty at once?

Group commit should make fifty writers share what a commit costs. An append here is a whole named transaction: the
turn's claim is checked, the next seq taken, an event inserted and its frame built.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from measure import bare_database, noise_told, percentile, print_table

from kedge.protocol.events import AgentEvent
from kedge.protocol.runs import Submission
from kedge.store.port import Claim
from kedge.store.sqlite.store import SqliteStore, random_id

APPENDS = 5_000
WRITERS = 50
ROUNDS = 5

BARE = "INSERT INTO events (body) VALUES (?)"
BODY = (b"x" * 100,)


async def main() -> None:
    rates: dict[str, list[float]] = {}
    with noise_told(), tempfile.TemporaryDirectory() as directory, bare_database() as db:
        store = SqliteStore.open(Path(directory))
        claims = await working_turns(store, WRITERS)

        def each() -> None:
            for _ in range(APPENDS):
                db.execute("BEGIN IMMEDIATE")
                db.execute(BARE, BODY)
                db.execute("COMMIT")

        def all_in_one() -> None:
            db.execute("BEGIN IMMEDIATE")
            db.executemany(BARE, [BODY] * APPENDS)
            db.execute("COMMIT")

        for _ in range(ROUNDS):
            note(rates, "bare INSERT, a commit each (baseline)", each)
            note(rates, "bare INSERT, executemany, one commit", all_in_one)
            for writers in (1, WRITERS):
                began = time.perf_counter()
                count = APPENDS // writers
                await asyncio.gather(*(append(store, claim, count) for claim in claims[:writers]))
                rates.setdefault(f"store, {writers} at once", []).append(APPENDS / (time.perf_counter() - began))
        await store.close()
        base = percentile(next(iter(rates.values())), 50)
        rows = [
            [name, f"{max(got):,.0f}", f"{percentile(got, 50):,.0f}", f"{percentile(got, 50) / base:.2f}"]
            for name, got in rates.items()
        ]
        print_table(f"appends a second, {ROUNDS} rounds of {APPENDS:,}", ["", "best", "median", "x baseline"], rows)


def note(rates: dict[str, list[float]], name: str, work: Callable[[], None]) -> None:
    began = time.perf_counter()
    work()
    rates.setdefault(name, []).append(APPENDS / (time.perf_counter() - began))


async def working_turns(store: SqliteStore, count: int) -> list[Claim]:
    """Turns of as many sessions, each with the right to write."""
    workspace_id = (await store.open_workspace("bench")).workspace.id
    claims: list[Claim] = []
    for _ in range(count):
        session = await store.create_session(workspace_id, "")
        await store.accept(workspace_id, random_id(), Submission(session_id=session.id, prompt="Do it."))
        started = await store.start(workspace_id, session.id)
        assert started is not None
        claims.append(started.claim)
    return claims


async def append(store: SqliteStore, claim: Claim, count: int) -> None:
    event = AgentEvent(type="notice", run_id=claim.run_id, session_id=claim.session_id, message="x" * 20)
    for _ in range(count):
        await store.append_agent_event(claim, event)


if __name__ == "__main__":
    asyncio.run(main())
