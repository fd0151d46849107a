"""What a turn reads of its session: the same whether it is remembered or not, and only once what is finished."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from kedge.protocol.messages import Finish, FinishReason, Message, Text, text_of
from kedge.store.port import Claim, Outcome
from kedge.store.sqlite.messages import CachedHistory, HistoryCache, read_history
from tests.store.stores import Place, opened


@pytest.fixture
async def place(tmp_path: Path) -> AsyncGenerator[Place]:
    async with opened(tmp_path) as place:
        yield place


async def say(place: Place, claim: Claim, text: str) -> None:
    message = await place.store.create_message(claim, "assistant")
    await place.store.finish_parts(claim, message.id, 0, [Text(text), Finish("end_turn")])


async def seen(place: Place, claim: Claim) -> list[str]:
    """The texts of the history, which must be what an empty memory would read."""
    found = await place.store.history(claim.workspace_id, claim.session_id)
    afresh: list[Message] = read_history(place.store._db, claim.workspace_id, claim.session_id, CachedHistory())[0]
    assert found == afresh
    return [text_of(message.parts) for message in found]


async def test_history_grows_with_what_is_finished_and_shows_what_is_open(place: Place) -> None:
    claim = (await place.start("run-1")).claim
    prompt = (await seen(place, claim))[0]
    await say(place, claim, "first")
    assert await seen(place, claim) == [prompt, "first"]
    message = await place.store.create_message(claim, "assistant")
    assert await seen(place, claim) == [prompt, "first", ""]
    await place.store.finish_parts(claim, message.id, 0, [Text("second"), Finish("end_turn")])
    assert await seen(place, claim) == [prompt, "first", "second"]


async def test_message_that_was_open_when_it_was_read_and_then_interrupted_is_left_out(place: Place) -> None:
    claim = (await place.start("run-1")).claim
    message = await place.store.create_message(claim, "assistant")
    assert len(await seen(place, claim)) == 2
    await place.store.finish_parts(claim, message.id, 0, [Text("half"), Finish("interrupted")])
    assert len(await seen(place, claim)) == 1


async def test_finished_messages_are_read_once(place: Place) -> None:
    claim = (await place.start("run-1")).claim
    for number in range(20):
        await say(place, claim, f"{number}")
    await seen(place, claim)
    known = place.store._histories.get(claim.session_id)
    assert len(known.messages) == 21
    assert read_history(place.store._db, claim.workspace_id, claim.session_id, known) == (list(known.messages), known)
    await place.store.finish(claim, Outcome("completed"))


def test_what_was_not_asked_about_for_longest_is_forgotten_first() -> None:
    histories = HistoryCache(max_bytes=100)
    histories.put("a", CachedHistory(1, 40))
    histories.put("b", CachedHistory(2, 40))
    histories.put("a", CachedHistory(3, 41))
    histories.put("c", CachedHistory(4, 40))
    assert (histories.get("a").seq, histories.get("b").seq, histories.get("c").seq) == (3, 0, 4)


def test_session_too_large_to_be_remembered_takes_nobody_elses_place() -> None:
    histories = HistoryCache(max_bytes=100)
    histories.put("a", CachedHistory(1, 40))
    histories.put("huge", CachedHistory(5, 101))
    assert (histories.get("a").seq, histories.get("huge").seq) == (1, 0)


async def summarize(place: Place, claim: Claim, text: str, reason: FinishReason = "end_turn") -> None:
    message = await place.store.create_message(claim, "assistant", summary=True)
    await place.store.finish_parts(claim, message.id, 0, [Text(text), Finish(reason)])


async def test_history_begins_at_the_last_finished_summary(place: Place) -> None:
    claim = (await place.start("run-1")).claim
    for number in range(3):
        await say(place, claim, f"before {number}")
        await summarize(place, claim, f"summary {number}")
        assert await seen(place, claim) == [f"summary {number}"]
        await say(place, claim, f"after {number}")
        assert await seen(place, claim) == [f"summary {number}", f"after {number}"]
    assert len(place.store._histories.get(claim.session_id).messages) == 2


@pytest.mark.parametrize("reason", ["interrupted", "canceled", "error"])
async def test_summary_that_was_not_finished_is_ignored(place: Place, reason: FinishReason) -> None:
    claim = (await place.start("run-1")).claim
    await say(place, claim, "said")
    whole = await seen(place, claim)
    message = await place.store.create_message(claim, "assistant", summary=True)
    assert await seen(place, claim) == whole  # being written
    await place.store.finish_parts(claim, message.id, 0, [Text("half"), Finish(reason)])
    assert await seen(place, claim) == whole
    await say(place, claim, "more")
    assert await seen(place, claim) == [*whole, "more"]
    await summarize(place, claim, "all of it")
    assert await seen(place, claim) == ["all of it"]


@pytest.mark.slow
async def test_long_session_with_many_summaries_is_read_from_the_last_one_only(place: Place) -> None:
    claim = (await place.start("run-1")).claim
    for number in range(500):
        await (summarize if number % 50 == 49 else say)(place, claim, f"{number}")
        found = await seen(place, claim)
        assert len(found) <= 51
        assert found[-1] == f"{number}"
    assert await seen(place, claim) == ["499"]
    assert place.store._histories.get(claim.session_id).size_bytes < 1_000
