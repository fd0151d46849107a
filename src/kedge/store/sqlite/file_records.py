"""`SqliteFileRecords`: the transactions and reads about files."""

from __future__ import annotations

from collections.abc import Sequence

from kedge.protocol.sessions import Session
from kedge.store.port import Cut, NewChange, NewUndo, NewWork, OpenWork, PastOfFiles, RecordedChange, Undo
from kedge.store.sqlite import changes as recording
from kedge.store.sqlite import timeline, undos
from kedge.store.sqlite.writer import ReaderPool, Writer


class SqliteFileRecords:
    def __init__(self, writer: Writer, readers: ReaderPool) -> None:
        self._writer = writer
        self._readers = readers

    async def begin_work(self, workspace_id: str, run_id: str, work: NewWork) -> int:
        return await self._writer.write("begin_work", recording.begin_work, workspace_id, run_id, work)

    async def record_changes(self, work_id: int, changes: Sequence[NewChange], *, is_last: bool = True) -> None:
        await self._writer.write("record_changes", recording.record, work_id, changes, is_last)

    async def open_work(self, workspace_id: str | None = None) -> list[OpenWork]:
        return await self._readers.read(recording.open_work, workspace_id)

    async def record_unwatched(self, workspace_id: str, run_id: str, why: str) -> bool:
        return await self._writer.write("record_unwatched", recording.record_unwatched, workspace_id, run_id, why)

    async def unwatched_reasons(self, workspace_id: str, session_id: str, cut: int = 0) -> list[str]:
        return await self._readers.read(recording.unwatched_reasons, workspace_id, session_id, cut)

    async def changes(
        self,
        workspace_id: str,
        session_id: str,
        cut: int = 0,
        run_id: str | None = None,
        *,
        with_unsure: bool = False,
    ) -> list[RecordedChange]:
        return await self._readers.read(recording.changes, workspace_id, session_id, cut, run_id, with_unsure)

    async def states_in_use(self) -> dict[bytes, int]:
        return await self._readers.read(recording.states_in_use)

    async def plans(self) -> Sequence[tuple[int, bytes]]:
        return await self._readers.read(undos.plans)

    async def cut_before(self, workspace_id: str, session_id: str, message_id: str | None) -> Cut:
        return await self._readers.read(undos.cut_before, workspace_id, session_id, message_id)

    async def cut_after(self, workspace_id: str, session_id: str, message_id: str | None) -> Cut:
        return await self._readers.read(undos.cut_after, workspace_id, session_id, message_id)

    async def begin_undo(self, workspace_id: str, session_id: str, undo: NewUndo) -> int:
        return await self._writer.write("begin_undo", undos.begin, workspace_id, session_id, undo)

    async def begin_redo(self, workspace_id: str, session_id: str, undo_id: int) -> None:
        await self._writer.write("begin_redo", undos.begin_redo, workspace_id, session_id, undo_id)

    async def finish_undo(self, undo_id: int, plan: bytes) -> Session:
        return await self._writer.write("finish_undo", undos.finish, undo_id, plan)

    async def abandon_undo(self, undo_id: int) -> None:
        await self._writer.write("abandon_undo", undos.abandon, undo_id)

    async def past_of_files(self, workspace_id: str, session_id: str) -> PastOfFiles:
        return await self._readers.read(timeline.read_past_of_files, workspace_id, session_id)

    async def last_undo(self, workspace_id: str, session_id: str) -> Undo | None:
        return await self._readers.read(undos.last, workspace_id, session_id)

    async def restores_before(self, session_id: str, message_id: str) -> Sequence[bytes]:
        return await self._readers.read(undos.restores_before, session_id, message_id)

    async def unfinished_undos(self) -> list[Undo]:
        return await self._readers.read(undos.unfinished_undos)

    async def fork(self, workspace_id: str, session_id: str, message_id: str) -> Session:
        return await self._writer.write("fork", undos.fork, workspace_id, session_id, message_id)
