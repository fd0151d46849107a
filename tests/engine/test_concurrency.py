"""Waiting for what the log will tell, and the bound on turns at work."""

import asyncio
from pathlib import Path

import pytest

from kedge.engine.concurrency import TurnSlots, Waiters
from kedge.protocol.runs import Run, RunEnd
from tests.support.harness import Kedge, place_of
from tests.support.reader import LIMIT_S
from tests.support.stores import StoreKind


async def settle() -> None:
    """Let every task run until it waits: nothing here depends on anything outside the loop."""
    for _ in range(20):
        await asyncio.sleep(0)


class TestWaiters:
    async def test_everyone_who_waits_for_a_key_is_told(self) -> None:
        waiters: Waiters[str, int] = Waiters()
        with waiters.waiter("a") as one, waiters.waiter("a") as two, waiters.waiter("b") as other:
            waiters.resolve("a", 7)
            assert (one.result(), two.result()) == (7, 7)
            assert not other.done()

    async def test_telling_nobody_does_nothing(self) -> None:
        waiters: Waiters[str, int] = Waiters()
        waiters.resolve("a", 1)
        with waiters.waiter("a") as late:
            assert not late.done()

    async def test_the_first_word_stands(self) -> None:
        waiters: Waiters[str, int] = Waiters()
        with waiters.waiter("a") as waiter:
            waiters.resolve("a", 1)
            waiters.resolve("a", 2)
            assert waiter.result() == 1

    async def test_one_that_gave_up_does_not_hinder_the_others(self) -> None:
        waiters: Waiters[str, int] = Waiters()
        with waiters.waiter("a") as impatient, waiters.waiter("a") as patient:
            impatient.cancel()
            waiters.resolve("a", 3)
            assert patient.result() == 3

    async def test_nothing_is_kept_for_those_who_left(self) -> None:
        waiters: Waiters[str, int] = Waiters()
        with waiters.waiter("a"), waiters.waiter("a"):
            pass
        with waiters.waiter("b"):
            waiters.resolve("b", 1)
        with pytest.raises(KeyError), waiters.waiter("c"):
            raise KeyError
        assert not waiters


class TestSlots:
    async def test_no_more_than_so_many_work_at_once(self) -> None:
        slots, at_work, most = TurnSlots(2), 0, 0
        gate = asyncio.Event()

        async def work() -> None:
            nonlocal at_work, most
            async with slots.take(is_counted=True):
                at_work += 1
                most = max(most, at_work)
                await gate.wait()
                at_work -= 1

        tasks = [asyncio.create_task(work()) for _ in range(5)]
        await settle()
        assert at_work == 2
        gate.set()
        async with asyncio.timeout(LIMIT_S):
            await asyncio.gather(*tasks)
        assert most == 2

    async def test_one_that_is_not_counted_never_waits(self) -> None:
        slots = TurnSlots(1)
        async with (
            asyncio.timeout(LIMIT_S),
            slots.take(is_counted=True),
            slots.take(is_counted=False) as child,
            child.lend(),
        ):
            pass
        assert slots._free._value == 1

    async def test_a_slot_is_lent_while_waiting_and_taken_back_after(self) -> None:
        slots, story = TurnSlots(1), list[str]()
        answered, release = asyncio.Event(), asyncio.Event()

        async def asker() -> None:
            async with slots.take(is_counted=True) as slot:
                async with slot.lend():
                    story.append("asks")
                    await answered.wait()
                    story.append("is answered")
                story.append("goes on")

        async def borrower() -> None:
            async with slots.take(is_counted=True):
                story.append("borrows")
                await release.wait()
                story.append("gives back")

        tasks = [asyncio.create_task(asker()), asyncio.create_task(borrower())]
        await settle()
        answered.set()
        await settle()
        assert story == ["asks", "borrows", "is answered"]
        release.set()
        async with asyncio.timeout(LIMIT_S):
            await asyncio.gather(*tasks)
        assert story[3:] == ["gives back", "goes on"]
        assert slots._free._value == 1

    async def test_a_turn_cancelled_while_its_slot_is_lent_does_not_queue_for_it(self) -> None:
        slots, lent = TurnSlots(1), asyncio.Event()

        async def asker() -> None:
            async with slots.take(is_counted=True) as slot, slot.lend():
                lent.set()
                await asyncio.Event().wait()

        task = asyncio.create_task(asker())
        async with asyncio.timeout(LIMIT_S):
            await lent.wait()
            async with slots.take(is_counted=True):  # the borrower keeps it all the while
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
        assert slots._free._value == 1

    async def test_a_turn_cancelled_while_it_waits_to_get_its_slot_back_takes_none(self) -> None:
        slots, lent, answered = TurnSlots(1), asyncio.Event(), asyncio.Event()

        async def asker() -> None:
            async with slots.take(is_counted=True) as slot, slot.lend():
                lent.set()
                await answered.wait()

        task = asyncio.create_task(asker())
        async with asyncio.timeout(LIMIT_S):
            await lent.wait()
            async with slots.take(is_counted=True):
                answered.set()
                await settle()
                assert not task.done()
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
        assert slots._free._value == 1

    @pytest.mark.parametrize("both_at_once", [True, False])
    async def test_two_parallel_asks_of_one_turn_share_one_slot(self, both_at_once: bool) -> None:
        slots = TurnSlots(2)
        answers = [asyncio.Event(), asyncio.Event()]
        taken: list[int] = []

        async def turn() -> None:
            async with slots.take(is_counted=True) as slot:

                async def ask(answer: asyncio.Event) -> None:
                    async with slot.lend():
                        await answer.wait()

                async with asyncio.TaskGroup() as asks:
                    for answer in answers:
                        asks.create_task(ask(answer))
                taken.append(slots._free._value)

        task = asyncio.create_task(turn())
        await settle()
        assert slots._free._value == 2
        answers[0].set()
        if not both_at_once:
            await settle()
            assert slots._free._value == 1
        answers[1].set()
        async with asyncio.timeout(LIMIT_S):
            await task
        assert taken == [1]
        assert slots._free._value == 2

    async def test_two_parallel_asks_that_queue_for_the_slot_take_it_once(self) -> None:
        slots, answers, release = TurnSlots(2), asyncio.Event(), asyncio.Event()
        taken: list[int] = []

        async def turn() -> None:
            async with slots.take(is_counted=True) as slot:

                async def ask() -> None:
                    async with slot.lend():
                        await answers.wait()

                async with asyncio.TaskGroup() as asks:
                    asks.create_task(ask())
                    asks.create_task(ask())
                taken.append(slots._free._value)

        async def borrower() -> None:
            async with slots.take(is_counted=True):
                await release.wait()

        asker = asyncio.create_task(turn())
        await settle()
        borrowers = [asyncio.create_task(borrower()) for _ in range(2)]
        await settle()
        answers.set()
        await settle()
        release.set()
        async with asyncio.timeout(LIMIT_S):
            await asyncio.gather(asker, *borrowers)
        assert taken == [1]
        assert slots._free._value == 2


async def test_the_turn_after_one_that_was_cancelled_while_asking_waits_for_a_slot(
    store_kind: StoreKind, tmp_path: Path
) -> None:
    """P17: the cancelled turn had lent its slot, and another session works in it."""
    async with Kedge(store_kind, tmp_path, max_turns=1) as kedge:
        asking, working = await kedge.session(), await kedge.session()
        await kedge.send(asking, "ask deploy now", "r1")
        await kedge.asked()
        await kedge.send(working, "wait b; say done", "r2")
        await kedge.reached("b")
        await kedge.send(asking, "say after", "r3")
        await kedge.cancel_run("r1")
        await kedge.end("r1")
        for _ in range(3):  # r3 would start in the very next commits
            await kedge.session()
        assert (await kedge.run("r3")).state == "queued"
        kedge.gates.open("b")
        await kedge.ends("r2", "r3")
        log = await kedge.log()
        assert place_of(log, RunEnd, run_id="r2") < place_of(log, Run, run_id="r3", state="running")
