"""Process groups on record: one belongs to its turn, until it is kept for the workspace."""

from __future__ import annotations

import logging
from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

from kedge.engine.concurrency import retry_store
from kedge.engine.processes import cgroups, process_groups
from kedge.engine.turn_writer import TurnWriter
from kedge.store.port import ProcessRecord

if TYPE_CHECKING:
    from kedge.engine.engine import Engine

log = logging.getLogger(__name__)


class _Kept(NamedTuple):
    workspace_id: str
    run_id: str


class BackgroundGroups:
    """Those that outlive their turns, background jobs: they end with their workspace or the server."""

    def __init__(self) -> None:
        self._groups: dict[ProcessRecord, _Kept] = {}  # oldest first
        self._ended: defaultdict[str, list[str]] = defaultdict(list)  # runs of groups that ended since `forget_ended`

    def __bool__(self) -> bool:
        return bool(self._groups)

    def add(self, record: ProcessRecord, workspace_id: str, run_id: str) -> None:
        self._groups[record] = _Kept(workspace_id, run_id)

    def discard(self, record: ProcessRecord) -> None:
        if kept := self._groups.pop(record, None):
            self._ended[kept.workspace_id].append(kept.run_id)

    def runs_of(self, workspace_id: str) -> list[str]:
        """Each run that has a group alive in the workspace, or one that ended since `forget_ended`."""
        alive = [kept.run_id for kept in self._groups.values() if kept.workspace_id == workspace_id]
        return list(dict.fromkeys([*self._ended.get(workspace_id, ()), *alive]))

    def forget_ended(self, workspace_id: str) -> None:
        self._ended.pop(workspace_id, None)

    async def end(self, term_s: float, kill_s: float, workspace_id: str | None = None) -> None:
        """Those of one workspace, or all. They stay on record until they were seen to be gone."""
        due = [record for record, kept in self._groups.items() if workspace_id in (None, kept.workspace_id)]
        if survivors := await process_groups.end_groups(due, term_s, kill_s):
            log.warning("left in the background, and cannot be ended: %s", ", ".join(survivors))


class ProcessGroup:
    """`forget` it when it has ended, also after its turn. What is not forgotten is ended with the turn."""

    def __init__(
        self, engine: Engine, turn_writer: TurnWriter, of_turn: set[ProcessRecord], record: ProcessRecord
    ) -> None:
        self._engine = engine
        self._desk = turn_writer
        self._of_turn = of_turn
        self.record = record

    @property
    def mark(self) -> str:
        return process_groups.mark_of(self.record)

    async def members(self) -> list[str]:
        return await process_groups.members(self.record)

    def limit(self, *, processes: int, memory_bytes: int) -> None:
        cgroups.limit(self.mark, processes=processes, memory_bytes=memory_bytes)

    async def end(self) -> list[str]:
        return await process_groups.end_groups([self.record], self._engine.term_s, self._engine.kill_s)

    async def keep(self) -> None:
        """From now on it ends with the workspace or the server, not with the turn."""
        self._desk.check_claim()
        claim, record = self._desk.claim, self.record
        await retry_store(lambda: self._engine.store.keep_process(claim, record))
        self._engine.background_groups.add(record, claim.workspace_id, claim.run_id)
        self._of_turn.discard(record)

    async def forget(self) -> None:
        self._of_turn.discard(self.record)
        self._engine.background_groups.discard(self.record)
        self._engine.user_groups.discard(self.record)
        cgroups.remove(self.mark)
        await retry_store(lambda: self._engine.store.forget_process(self.record))
