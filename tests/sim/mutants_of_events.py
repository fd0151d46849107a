"""Planted bugs in what clients are told: each a plausible mistake, patched in memory."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import msgspec

from kedge.engine import message_writer
from kedge.engine.message_writer import TurnWriter
from kedge.feed.feed import Feed, Ring
from kedge.feed.feeds import FeedReader, Feeds
from kedge.feed.open_items import OpenItems
from kedge.protocol.errors import StoreUnavailable
from kedge.protocol.messages import Delta
from kedge.protocol.runs import Receipt, Submission
from kedge.store.port import Claim, Committed, Draft
from kedge.store.sqlite import messages, rows
from kedge.store.sqlite.store import SqliteStore
from kedge.store.sqlite.writer import Job, Transaction, Writer
from tests.sim.mutants_of_runs import nothing

# P1, P9: durable, then shown


@contextmanager
def acceptance_is_acknowledged_although_the_disk_is_full() -> Generator[None]:
    accept = SqliteStore.accept

    async def accept_at_any_price(self: SqliteStore, workspace_id: str, run_id: str, submission: Submission) -> Receipt:
        try:
            return await accept(self, workspace_id, run_id, submission)
        except StoreUnavailable:
            return Receipt(run_id, submission.session_id, "queued", 0, replayed=False)

    with patch.object(SqliteStore, "accept", accept_at_any_price):
        yield


@contextmanager
def event_is_shown_before_its_commit() -> Generator[None]:
    savepoint, group_done = Writer._savepoint, Writer._group_done

    def savepoint_and_show(self: Writer, job: Job) -> Any:
        done = savepoint(self, job)
        if done.events:
            self.on_commit(done.events)
        return done

    def group_done_in_silence(self: Writer, jobs: Any, group: Any) -> None:
        with patch.object(self, "on_commit", nothing):
            group_done(self, jobs, group)

    with (
        patch.object(Writer, "_savepoint", savepoint_and_show),
        patch.object(Writer, "_group_done", group_done_in_silence),
    ):
        yield


@contextmanager
def event_is_lost_between_store_and_feed() -> Generator[None]:
    publish = Feeds.publish

    def publish_all_but_the_ninth(self: Feeds, events: Sequence[Committed]) -> None:
        publish(self, [event for event in events if event.seq != 9])

    with patch.object(Feeds, "publish", publish_all_but_the_ninth):
        yield


@contextmanager
def gap_on_reconnect() -> Generator[None]:
    position_after = Ring.position_after

    def one_too_far(self: Ring, seq: int) -> int:
        return min(position_after(self, seq) + 1, self.end - 1)

    with patch.object(Ring, "position_after", one_too_far):
        yield


@contextmanager
def gap_between_two_pages_of_the_log() -> Generator[None]:
    page = FeedReader._page

    async def page_and_one_more(self: FeedReader) -> bytes:
        shown = await page(self)
        self.cursor.seq = min(self.cursor.seq + 1, self.feed.ring.head)
        return shown

    with patch.object(FeedReader, "_page", page_and_one_more):
        yield


@contextmanager
def duplicate_on_reconnect() -> Generator[None]:
    position_after = Ring.position_after

    def one_too_early(self: Ring, seq: int) -> int:
        return max(position_after(self, seq) - 1, self.start)

    with patch.object(Ring, "position_after", one_too_early):
        yield


@contextmanager
def reset_is_not_told() -> Generator[None]:
    def reset_in_silence(self: FeedReader, _: str) -> bytes:
        self.cursor.seq = self.feed.ring.head
        return b""

    with patch.object(FeedReader, "_reset", reset_in_silence):
        yield


# P12: streamed text


@contextmanager
def last_draft_is_lost() -> Generator[None]:
    async def close_without_saving(self: TurnWriter) -> None:
        self.is_revoked = True

    with patch.object(TurnWriter, "close", close_without_saving):
        yield


@contextmanager
def draft_is_doubled() -> Generator[None]:
    append = messages.append_drafts

    def append_twice(tx: Transaction, claim: Claim, drafts: list[Draft]) -> None:
        append(tx, claim, drafts)
        append(tx, claim, drafts)

    with patch.object(messages, "append_drafts", append_twice):
        yield


@contextmanager
def snapshot_lacks_the_newest_piece() -> Generator[None]:
    grown = OpenItems.append_text
    behind: dict[OpenItems, Delta] = {}

    def grown_late(self: OpenItems, delta: Delta) -> None:
        before = behind.pop(self, None)
        if (
            before is not None
            and before.message_id in self._messages
            and before.part in self._messages[before.message_id].open_parts
        ):
            grown(self, before)
        behind[self] = delta

    with patch.object(OpenItems, "append_text", grown_late):
        yield


@contextmanager
def offset_counts_utf16_units() -> Generator[None]:
    publish = Feed.publish_delta
    shown: dict[tuple[str, int], int] = {}

    def publish_with_other_offset(self: Feed, delta: Delta) -> None:
        place = (delta.message_id, delta.part)
        offset = shown.get(place, 0)
        shown[place] = offset + len(delta.text.encode("utf-16-le")) // 2
        publish(self, msgspec.structs.replace(delta, offset=offset))

    with patch.object(Feed, "publish_delta", publish_with_other_offset):
        yield


@contextmanager
def turn_writes_on_after_its_cancel() -> Generator[None]:
    def claimed_always(tx: Transaction, claim: Claim, *, even_cancelled: bool = False) -> Any:
        return rows.get_run(tx.db, claim.workspace_id, claim.run_id)

    with patch.object(TurnWriter, "check_claim", nothing), patch.object(messages, "claimed_run", claimed_always):
        yield


@contextmanager
def request_is_forgotten_at_a_restart() -> Generator[None]:
    state = Feed.__init__

    def without_pending(self: Feed, opened: Any, *args: Any) -> None:
        state(self, msgspec.structs.replace(opened, pending=[]), *args)

    with patch.object(Feed, "__init__", without_pending):
        yield


@contextmanager
def drafts_are_not_saved_while_a_part_grows() -> Generator[None]:
    with patch.object(message_writer, "DRAFT_S", 1e9):
        yield


MUTANTS = (
    acceptance_is_acknowledged_although_the_disk_is_full,
    event_is_shown_before_its_commit,
    event_is_lost_between_store_and_feed,
    gap_on_reconnect,
    gap_between_two_pages_of_the_log,
    duplicate_on_reconnect,
    reset_is_not_told,
    last_draft_is_lost,
    draft_is_doubled,
    snapshot_lacks_the_newest_piece,
    offset_counts_utf16_units,
    turn_writes_on_after_its_cancel,
    request_is_forgotten_at_a_restart,
    drafts_are_not_saved_while_a_part_grows,
)
