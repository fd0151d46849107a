"""What the writers of one turn share: the right to write, and text in flight on its way to the store (P12, P13)."""

from __future__ import annotations

import asyncio
import contextlib

import msgspec

from kedge.feed.feed import Feed
from kedge.protocol.errors import StoreUnavailable
from kedge.store.errors import ClaimLost
from kedge.store.port import Claim, Draft, Store

DRAFT_S = 0.25  # what a crash may lose of text in flight


class TurnWriter:
    """When it is revoked nothing more is begun; what was shown before is still saved."""

    def __init__(self, store: Store, feed: Feed, claim: Claim) -> None:
        self.store = store
        self.feed = feed
        self.claim = claim
        self.is_revoked = False
        self._unsaved: list[Draft] = []
        self._timer: asyncio.TimerHandle | None = None
        self._saving: asyncio.Task[None] | None = None
        self._save_lock = asyncio.Lock()  # what is saved later comes later in the text

    def check_claim(self) -> None:
        if self.is_revoked:
            raise ClaimLost(self.claim.run_id)

    def add_draft(self, draft: Draft) -> None:
        self._unsaved.append(draft)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(DRAFT_S, self._save_soon)

    def drop_drafts(self, message_id: str, below: int) -> None:
        """Parts that are committed need no draft."""
        self._unsaved = [draft for draft in self._unsaved if draft.message_id != message_id or draft.part >= below]

    async def save_drafts(self) -> None:
        """Hand everything in flight to the store; what it cannot take now is kept for later."""
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
                pass  # the run ended meanwhile, with what was saved before

    async def close(self) -> None:
        """The turn is over: it writes no more, and what people saw of it is saved. To be called until it succeeds."""
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
    """One row for each part and flush, however many pieces came."""
    merged: dict[tuple[str, int], list[Draft]] = {}
    for draft in drafts:
        merged.setdefault((draft.message_id, draft.part), []).append(draft)
    return [
        msgspec.structs.replace(pieces[0], text="".join(piece.text for piece in pieces)) for pieces in merged.values()
    ]
