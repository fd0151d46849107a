"""A process group on record, as a tool holds it: it belongs to its turn, until it is kept for the workspace."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kedge.engine import processes
from kedge.engine.persist import persist
from kedge.engine.writing import Desk
from kedge.store.port import LeftProcess

if TYPE_CHECKING:
    from kedge.engine.engine import Engine


class ProcessGroup:
    """`forget` it when it has ended, also after its turn. What is not forgotten is ended with the turn."""

    def __init__(self, engine: Engine, desk: Desk, of_turn: set[LeftProcess], record: LeftProcess) -> None:
        self._engine = engine
        self._desk = desk
        self._of_turn = of_turn
        self.record = record

    @property
    def mark(self) -> str:
        return processes.mark_of(self.record)

    async def members(self) -> list[str]:
        return await processes.members(self.record)

    async def end(self) -> list[str]:
        return await processes.end_groups([self.record], self._engine.term_s, self._engine.kill_s)

    async def keep(self) -> None:
        """From now on it ends with the workspace or the server, not with the turn."""
        self._desk.check()
        claim, record = self._desk.claim, self.record
        await persist(lambda: self._engine.store.keep_process(claim, record))
        self._engine.kept[record] = claim.workspace_id
        self._of_turn.discard(record)

    async def forget(self) -> None:
        self._of_turn.discard(self.record)
        self._engine.kept.pop(self.record, None)
        await persist(lambda: self._engine.store.forget_process(self.record))
