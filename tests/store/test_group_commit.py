"""One writer, many callers: transactions that wait become one group, and each keeps its own fate."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar

import pytest

from kedge import failpoints
from kedge.protocol.errors import Conflict, NotFound, StoreUnavailable
from kedge.protocol.runs import Submission
from kedge.protocol.sessions import SessionChange
from kedge.store.port import Committed
from kedge.store.sqlite import database
from kedge.store.sqlite.store import SqliteStore
from kedge.store.sqlite.writer import Checkpoints, Transaction
from tests.store.stores import Place, opened, place_in

T = TypeVar("T")


class HandCranked:
    """An executor that runs what it was given when the test says so: the interleaving is the test's."""

    def __init__(self) -> None:
        self._given: list[tuple[Future[Any], Callable[..., Any], tuple[Any, ...]]] = []
        self.is_shut = False

    def submit(self, fn: Callable[..., T], /, *args: Any) -> Future[T]:
        if self.is_shut:
            raise RuntimeError("cannot schedule new futures after shutdown")  # as a pool of threads does
        future: Future[T] = Future()
        self._given.append((future, fn, args))
        return future

    def turn(self) -> None:
        future, fn, args = self._given.pop(0)
        future.set_result(fn(*args))

    async def settle(self) -> None:
        """Run everything, and let everybody who waited go on."""
        for _ in range(20):
            while self._given:
                self.turn()
            await asyncio.sleep(0)


@pytest.fixture(autouse=True)
def disarmed() -> Generator[None]:
    yield
    failpoints.disarm()


@pytest.fixture
async def place(tmp_path: Path) -> AsyncGenerator[Place]:
    async with opened(tmp_path) as place:
        yield place


@pytest.fixture
async def cranked(tmp_path: Path) -> AsyncGenerator[tuple[Place, HandCranked]]:
    crank = HandCranked()
    store = SqliteStore.open(tmp_path, write_executor=crank)
    making = asyncio.create_task(place_in(store))
    await crank.settle()
    yield await making, crank
    await crank.settle()
    store.abandon()


def count_commits() -> list[str]:
    commits: list[str] = []
    failpoints.watch(lambda name: commits.append(name) if name == "group.commit" else None)
    return commits


async def test_transactions_that_wait_are_committed_together(cranked: tuple[Place, HandCranked]) -> None:
    place, crank = cranked
    commits = count_commits()
    sending = [asyncio.create_task(place.accept(f"run-{number}")) for number in range(50)]
    await asyncio.sleep(0)
    await crank.settle()
    await asyncio.gather(*sending)
    assert len(commits) == 2  # the first alone; the rest while it was being written


async def test_a_transaction_that_fails_leaves_the_others_of_its_group(cranked: tuple[Place, HandCranked]) -> None:
    place, crank = cranked
    first = asyncio.create_task(place.accept("run-0"))
    await asyncio.sleep(0)
    sending: list[asyncio.Task[Any]] = [
        asyncio.create_task(place.accept("run-1")),
        asyncio.create_task(
            place.store.change_session(place.workspace_id, "no such session", SessionChange(title="x"))
        ),
        asyncio.create_task(place.accept("run-1", "another body")),
        asyncio.create_task(place.accept("run-2")),
    ]
    await asyncio.sleep(0)
    await crank.settle()
    await first
    results = await asyncio.gather(*sending, return_exceptions=True)
    assert [type(result) for result in results] == [type(None), NotFound, Conflict, type(None)]
    assert [run.run_id for run in await place.store.runs(place.workspace_id)] == ["run-0", "run-1", "run-2"]
    assert [event.seq for event in await place.log()] == [1, 2, 3, 4], "a failed one must leave no gap"


async def test_what_a_failed_transaction_wrote_before_it_failed_is_gone(cranked: tuple[Place, HandCranked]) -> None:
    place, crank = cranked

    def write_and_fail(tx: Transaction) -> None:
        tx.append("config_changed", "updated", place.workspace_id, "", b"{}", body=b"{}")
        tx.execute("UPDATE sessions SET title = 'half done'")
        raise ValueError("after two effects")

    first = asyncio.create_task(place.accept("run-0"))
    await asyncio.sleep(0)
    failing = place.store._writer.write("failing", write_and_fail)
    last = asyncio.create_task(place.accept("run-1"))
    await asyncio.sleep(0)
    await crank.settle()
    await asyncio.gather(first, last)
    with pytest.raises(ValueError, match="after two effects"):
        await failing
    assert (await place.store.session(place.workspace_id, place.session_id)).title == "a session"
    assert [event.seq for event in await place.log()] == [1, 2, 3]


async def test_events_are_published_in_the_order_of_their_commits_before_callers_go_on(place: Place) -> None:
    published: list[int] = []
    told: list[tuple[str, int]] = []

    def listen(events: Sequence[Committed]) -> None:
        published.extend(event.seq for event in events)

    async def send(number: int) -> None:
        receipt = await place.store.accept(
            place.workspace_id, f"run-{number}", Submission(session_id=place.session_id, prompt="hello")
        )
        told.append((receipt.run_id, receipt.seq))
        assert published[-1] >= receipt.seq, "told before it was published"

    place.store.on_commit = listen
    await asyncio.gather(*(send(number) for number in range(90)))
    assert published == list(range(2, 92))
    assert [seq for _, seq in told] == published


async def test_nothing_is_published_before_its_commit(place: Place) -> None:
    published: list[int] = []

    def listen(events: Sequence[Committed]) -> None:
        published.extend(event.seq for event in events)

    place.store.on_commit = listen
    seen: list[list[int]] = []
    failpoints.arm("accept.done", lambda: seen.append(list(published)))
    failpoints.arm("accept.committed", lambda: seen.append(list(published)))
    await place.accept("run-1")
    assert seen == [[], []]
    assert published == [2]


async def test_a_transaction_happens_also_when_its_caller_went_away(cranked: tuple[Place, HandCranked]) -> None:
    place, crank = cranked
    leaving = asyncio.create_task(place.accept("run-1"))
    await asyncio.sleep(0)
    leaving.cancel()
    await asyncio.wait({leaving})
    staying = asyncio.create_task(place.accept("run-2"))
    await asyncio.sleep(0)
    await crank.settle()
    await staying
    assert leaving.cancelled()
    assert [run.run_id for run in await place.store.runs(place.workspace_id)] == ["run-1", "run-2"]


async def test_a_listener_that_fails_keeps_nobody_waiting(place: Place) -> None:
    """What was committed is acknowledged, and the writer goes on; the failure is the loop's to report."""
    reported: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))

    def listen(_: Sequence[Committed]) -> None:
        raise RuntimeError("a bug in a listener")

    place.store.on_commit = listen
    async with asyncio.timeout(30):
        await place.accept("run-1")
        await place.accept("run-2")
    assert [str(context["exception"]) for context in reported] == ["a bug in a listener"] * 2


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("a bug"), SystemExit(1), StopIteration()], ids=repr)
@pytest.mark.parametrize("where", ["accept.begin", "accept.done", "group.commit"])
async def test_whatever_breaks_a_group_its_callers_are_told_and_the_next_is_written(
    place: Place, where: str, error: BaseException
) -> None:
    def fail() -> None:
        failpoints.disarm()
        raise error

    failpoints.arm(where, fail)
    async with asyncio.timeout(30):
        with pytest.raises((type(error), RuntimeError)):
            await place.accept("run-1")
        await place.accept("run-2")
    assert [run.run_id for run in await place.store.runs(place.workspace_id)] == ["run-2"]


async def test_a_store_that_was_let_go_of_keeps_nobody_waiting(cranked: tuple[Place, HandCranked]) -> None:
    place, crank = cranked
    first = asyncio.create_task(place.accept("run-1"))
    await asyncio.sleep(0)
    second = asyncio.create_task(place.accept("run-2"))
    await asyncio.sleep(0)
    crank.is_shut = True
    await crank.settle()
    async with asyncio.timeout(30):
        await first
        with pytest.raises(StoreUnavailable, match="after shutdown"):
            await second
        await place.store._writer.drain()


async def test_a_checkpoint_that_failed_does_not_keep_the_store_from_closing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: Checkpoints) -> None:
        raise MemoryError

    monkeypatch.setattr(database, "WAL_BYTES", 0)
    monkeypatch.setattr(Checkpoints, "_move_bulk", fail)
    store = SqliteStore.open(tmp_path)
    place = await place_in(store)
    await place.accept("run-1")
    await store.close()
    async with opened(tmp_path) as again:
        assert len(await again.store.runs(place.workspace_id)) == 1


async def test_closing_waits_for_what_was_sent_and_refuses_what_comes_later(tmp_path: Path) -> None:
    store = SqliteStore.open(tmp_path)
    place = await place_in(store)
    sending = [asyncio.create_task(place.accept(f"run-{number}")) for number in range(20)]
    await asyncio.sleep(0)
    await store.close()
    await asyncio.gather(*sending)
    with pytest.raises(StoreUnavailable, match="the store is closed"):
        await place.accept("too-late")
    async with opened(tmp_path) as again:
        assert len(await again.store.runs(place.workspace_id)) == 20
