"""The right of one turn to write, and its text in flight on the way to the store (P12, P13)."""

from __future__ import annotations

import asyncio
import contextlib

import msgspec

from kedge.feed.feed import Feed
from kedge.protocol.errors import StoreUnavailable
from kedge.store.errors import ClaimLost
from kedge.store.port import Claim, Draft, Store

DRAFT_S = 0.25  # text in flight that a crash may lose


class TurnWriter:
    """Shared by all message writers of a turn. After it is revoked, `check_claim` raises and only drafts are saved."""

    def __init__(self, store: Store, feed: Feed, claim: Claim) -> None:
        self.store = store
        self.feed = feed
        self.claim = claim
        self.is_revoked = False
        self._unsaved: list[Draft] = []
        self._timer: asyncio.TimerHandle | None = None
        self._saving: asyncio.Task[None] | None = None
        self._save_lock = asyncio.Lock()  # drafts of a part are stored in the order of its text

    def check_claim(self) -> None:
        if self.is_revoked:
            raise ClaimLost(self.claim.run_id)

    def add_draft(self, draft: Draft) -> None:
        self._unsaved.append(draft)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(DRAFT_S, self._save_soon)

    def drop_drafts(self, message_id: str, below: int) -> None:
        """Drop drafts of the message's parts below this index: they are committed."""
        self._unsaved = [draft for draft in self._unsaved if draft.message_id != message_id or draft.part >= below]

    async def save_drafts(self) -> None:
        """Store all drafts. Raises `StoreUnavailable`, and then keeps them for the next call."""
        async with self._save_lock:
            drafts, self._unsaved = self._unsaved, []
            if not drafts:
                return
            try:
                await self.store.append_drafts(self.claim, _merge_drafts(drafts))
            except StoreUnavailable:
                self._unsaved = drafts + self._unsaved
                raise
            except ClaimLost:
                pass  # the run has ended, with the drafts saved before

    async def close(self) -> None:
        """Revoke the right to write and save the text that clients have seen. Call it until it does not raise."""
        self.is_revoked = True
        if self._timer is not None:
            self._timer.cancel()
        if self._saving is not None:
            await self._saving
        await self.save_drafts()

    def _save_soon(self) -> None:
        self._timer = None
        self._saving = asyncio.get_running_loop().create_task(self._try_to_save())

    async def _try_to_save(self) -> None:
        with contextlib.suppress(StoreUnavailable):
            await self.save_drafts()


def _merge_drafts(drafts: list[Draft]) -> list[Draft]:
    """One draft for each part, with the joined text."""
    by_part: dict[tuple[str, int], list[Draft]] = {}
    for draft in drafts:
        by_part.setdefault((draft.message_id, draft.part), []).append(draft)
    return [
        msgspec.structs.replace(group[0], text="".join(draft.text for draft in group)) for group in by_part.values()
    ]
