"""The timeline of a session: its prompts, what each call changed, its undos, and what going back would change."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from kedge.files.blobs import Blobs
from kedge.files.diffs import count_lines
from kedge.files.restore import get_status, is_empty_directory_change
from kedge.files.states import State, decode_state
from kedge.files.versions import Versions
from kedge.protocol.files import (
    Restore,
    Timeline,
    TimelineCall,
    TimelineFile,
    TimelineState,
    TimelineTotal,
    TimelineTurn,
    TimelineUndo,
)
from kedge.protocol.messages import replace_surrogates
from kedge.store.port import PastChange, PastOfFiles, PastTurn, PastUndo, Store

MAX_FILES = 100  # of one call; more are counted
MAX_PROMPT_CHARS = 2_000
MAX_COMPARED = 5_000  # pairs of contents whose lines are counted in one answer


async def read_timeline(store: Store, versions: Versions, root: bytes, workspace_id: str, session_id: str) -> Timeline:
    past = await store.files.past_of_files(workspace_id, session_id)
    first = past.turns[0].seq if past.turns else 0
    notes = await store.files.unwatched_reasons(workspace_id, session_id, first)
    return await asyncio.to_thread(_build, past, versions.blobs, root + b"/", notes)


def _build(past: PastOfFiles, blobs: Blobs, prefix: bytes, notes: list[str]) -> Timeline:
    """Blocks: counts lines."""
    starts = [turn.seq for turn in past.turns]
    by_turn: list[list[PastChange]] = [[] for _ in starts]
    for change in past.changes:
        if (index := bisect_right(starts, change.seq) - 1) >= 0:
            by_turn[index].append(change)
    totals = _Totals(blobs)
    turns: list[TimelineTurn] = []
    for turn, changes in zip(reversed(past.turns), reversed(by_turn), strict=True):
        back = totals.go_back(changes)
        turns.append(_describe_turn(turn, changes, prefix, back))
    return Timeline(
        turns=turns[::-1], undos=[_describe_undo(undo) for undo in past.undos], omitted=past.omitted, notes=notes
    )


def _describe_turn(turn: PastTurn, changes: Sequence[PastChange], prefix: bytes, back: TimelineTotal) -> TimelineTurn:
    is_shell = turn.prompt.startswith("!")
    calls: dict[tuple[str, int], list[PastChange]] = {}
    for change in changes:
        tool = change.tool or (
            "job" if change.change.unsure == "background_job" else "shell" if is_shell else "unknown"
        )
        calls.setdefault((tool, change.call_seq), []).append(change)
    return TimelineTurn(
        seq=turn.seq,
        message_id=turn.message_id,
        run_id=turn.run_id,
        prompt=turn.prompt[:MAX_PROMPT_CHARS],
        created_at=turn.created_at,
        state=_describe_state(turn.undo_state),
        calls=[_describe_call(tool, turn.prompt, found, prefix) for (tool, _), found in calls.items()],
        back=back,
    )


def _describe_state(undo_state: str | None) -> TimelineState:
    if undo_state is None:
        return "current"
    return "dropped" if undo_state == "dropped" else "undone"


def _describe_call(tool: str, prompt: str, changes: Sequence[PastChange], prefix: bytes) -> TimelineCall:
    files: list[TimelineFile] = []
    for each in changes:
        before, after = decode_state(each.change.before), decode_state(each.change.after)
        if not is_empty_directory_change(before, after):
            files.append(
                TimelineFile(
                    path=replace_surrogates(os.fsdecode(each.change.path.removeprefix(prefix))),
                    status=get_status(before, after),
                    added=each.change.added,
                    removed=each.change.removed,
                    unsure=each.change.unsure,
                    undone=each.is_undone,
                )
            )
    command = prompt.removeprefix("!") if tool == "shell" else _read_command(changes[0].input)
    more = max(len(files) - MAX_FILES, 0)
    return TimelineCall(tool=tool, files=files[:MAX_FILES], command=command and command[:MAX_PROMPT_CHARS], more=more)


class _Command(msgspec.Struct):
    command: str


def _read_command(encoded: str | None) -> str | None:
    """Return the command of a call, if its tool has one."""
    if encoded is None:
        return None
    try:
        return msgspec.json.decode(encoded, type=_Command).command
    except msgspec.DecodeError:
        return None


def _describe_undo(undo: PastUndo) -> TimelineUndo:
    kind: Restore = "files" if not undo.hides else "conversation" if undo.reverts == "none" else "both"
    state = "undone" if undo.state == "undone" else "redone" if undo.state == "redone" else "dropped"
    return TimelineUndo(seq=undo.seq, message_id=undo.message_id, restore=kind, state=state, at=undo.at)


class _Path(NamedTuple):
    """A path from its first change on, after which it had `last`; with its lines, if they were counted."""

    first: State
    last: State
    added: int
    removed: int


class _Totals:
    """What going back changes, turn by turn from the last one on. By the record: the disk is not looked at."""

    def __init__(self, blobs: Blobs) -> None:
        self._blobs = blobs
        self._paths: dict[bytes, _Path] = {}
        self._unsure: set[bytes] = set()
        self._compared = 0

    def go_back(self, changes: Sequence[PastChange]) -> TimelineTotal:
        """Add the changes of one more turn, before those that are known."""
        own: dict[bytes, tuple[State, State]] = {}
        for each in changes:
            if each.is_undone:
                continue
            if each.change.unsure is not None:
                self._unsure.add(each.change.path)
                continue
            path, after = each.change.path, decode_state(each.change.after)
            own[path] = (own[path][0] if path in own else decode_state(each.change.before), after)
        for path, (first, last) in own.items():
            known = self._paths.get(path)
            self._paths[path] = self._compare(first, known.last if known else last)
        changed = [each for each in self._paths.values() if each.first != each.last]
        changed = [each for each in changed if not is_empty_directory_change(each.first, each.last)]
        return TimelineTotal(
            files=len(changed),
            added=sum(each.added for each in changed),
            removed=sum(each.removed for each in changed),
            unsure=len(self._unsure - self._paths.keys()),
        )

    def _compare(self, first: State, last: State) -> _Path:
        self._compared += 1
        if self._compared > MAX_COMPARED:
            return _Path(first, last, 0, 0)
        try:
            return _Path(first, last, *count_lines(last, first, self._blobs))
        except sqlite3.Error:
            return _Path(first, last, 0, 0)  # only shown to people
