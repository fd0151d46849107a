"""The part of the `Store` protocol about files: changes, open work and undos. File states are opaque bytes here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

import msgspec

from kedge.protocol.files import Unsure
from kedge.protocol.sessions import Session

UndoState = Literal["undoing", "undone", "redoing", "redone", "dropped"]


class NewChange(msgspec.Struct, frozen=True, kw_only=True):
    """`shown` is the path as clients see it; `unsure` says why it may not be the run's own change."""

    path: bytes
    shown: str
    before: bytes
    after: bytes
    added: int = 0
    removed: int = 0
    unsure: Unsure | None = None


class RecordedChange(msgspec.Struct, frozen=True, kw_only=True):
    path: bytes
    version: int
    before: bytes
    after: bytes
    added: int
    removed: int
    unsure: Unsure | None = None


class NewWork(msgspec.Struct, frozen=True, kw_only=True):
    """Something is about to change files: a tool one path, or a command (`path` is None) any.

    `after`: the planned state, if known. `hollow`: the directory of a new file, if it was empty before.
    """

    path: bytes | None = None
    before: bytes | None = None
    after: bytes | None = None
    hollow: bytes | None = None


class OpenWork(NewWork, frozen=True, kw_only=True):
    """Work whose changes are not recorded yet."""

    id: int
    workspace_id: str


class Cut(msgspec.Struct, frozen=True, kw_only=True):
    """A position in a session, before everything from `seq` on. `prompt` is the text of the user message there."""

    seq: int
    message_id: str
    prompt: str | None = None


class Undo(msgspec.Struct, frozen=True, kw_only=True):
    id: int
    workspace_id: str
    session_id: str
    state: UndoState
    message_id: str
    plan: bytes


class FileRecords(Protocol):
    # changes
    async def begin_work(self, workspace_id: str, run_id: str, work: NewWork) -> int: ...
    async def record_changes(self, work_id: int, changes: Sequence[NewChange], *, is_last: bool = True) -> None: ...
    async def open_work(self, workspace_id: str | None = None) -> list[OpenWork]: ...
    async def record_unwatched(self, workspace_id: str, run_id: str, why: str) -> bool: ...
    async def unwatched(self, workspace_id: str, session_id: str, cut: int = 0) -> list[str]: ...
    async def changes(
        self,
        workspace_id: str,
        session_id: str,
        cut: int = 0,
        run_id: str | None = None,
        *,
        with_unsure: bool = False,
    ) -> list[RecordedChange]: ...
    async def states_in_use(self) -> dict[bytes, int]: ...  # last use of each; larger is later
    async def plans(self) -> Sequence[tuple[int, bytes]]: ...

    # undo, redo, fork
    async def cut_before(self, workspace_id: str, session_id: str, message_id: str | None) -> Cut: ...
    async def cut_after(self, workspace_id: str, session_id: str, message_id: str | None) -> Cut: ...
    async def begin_undo(
        self, workspace_id: str, session_id: str, cut: Cut, plan: bytes, fork_after: str | None = None
    ) -> int: ...
    async def begin_redo(self, workspace_id: str, session_id: str, undo_id: int) -> None: ...
    async def finish_undo(self, undo_id: int, plan: bytes) -> Session: ...
    async def abandon_undo(self, undo_id: int) -> None: ...
    async def last_undo(self, workspace_id: str, session_id: str) -> Undo | None: ...
    async def unfinished_undos(self) -> list[Undo]: ...
    async def fork(self, workspace_id: str, session_id: str, message_id: str) -> Session: ...
