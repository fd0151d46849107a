"""Planted bugs in what is undone, redone and forked: each a plausible mistake, patched in memory."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from kedge.engine.files.undo import UndoManager
from kedge.store.sqlite import messages, undos
from tests.sim.mutants_of_runs import nothing, rewritten


async def nothing_at_all(*_: Any) -> None:
    pass


@contextmanager
def undo_hides_its_first_message_alone() -> Generator[None]:
    with rewritten(undos, "_hide", "session_id = ? AND seq >= ? AND undone = 0", "session_id = ? AND seq = ?"):
        yield


@contextmanager
def undo_is_done_while_a_run_is_open() -> Generator[None]:
    with patch.object(undos, "_check_idle", nothing), patch.object(UndoManager, "_check_idle", nothing_at_all):
        yield


@contextmanager
def a_sub_agent_is_prompted_while_its_parent_is_undone() -> Generator[None]:
    with patch.object(undos, "ANCESTORS", "(SELECT ?)"):
        yield


@contextmanager
def undo_is_forgotten_at_a_crash() -> Generator[None]:
    with patch.object(UndoManager, "recover", nothing_at_all):
        yield


@contextmanager
def redo_comes_after_a_new_prompt() -> Generator[None]:
    with patch.object(undos, "drop", nothing):
        yield


@contextmanager
def history_is_remembered_with_what_was_undone() -> Generator[None]:
    def never(*_: object) -> int:
        return 0

    with patch.object(messages, "_count_rewrites", never):
        yield


@contextmanager
def undo_of_files_hides_messages() -> Generator[None]:
    with rewritten(undos, "_hide", 'if undo["hides"]', "if True"):
        yield


@contextmanager
def fork_lacks_its_last_message() -> Generator[None]:
    with rewritten(undos, "fork", "seq <= ? AND reason", "seq < ? AND reason"):
        yield


MUTANTS = (
    undo_hides_its_first_message_alone,
    undo_is_done_while_a_run_is_open,
    a_sub_agent_is_prompted_while_its_parent_is_undone,
    undo_is_forgotten_at_a_crash,
    redo_comes_after_a_new_prompt,
    history_is_remembered_with_what_was_undone,
    undo_of_files_hides_messages,
    fork_lacks_its_last_message,
)
