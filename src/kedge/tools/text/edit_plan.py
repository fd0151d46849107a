"""Edits of a file: planned, shown as a diff, and written atomically.

An edit is refused unless the model has seen the current content: otherwise it would overwrite somebody's work.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, ParamSpec, TypeVar

import msgspec

from kedge.files.diffs import Diff, diff
from kedge.files.states import compute_digest
from kedge.tools.errors import ToolError
from kedge.tools.port import Access, Output, ToolContext, ToolScope, display_path, resolve_path
from kedge.tools.text import atomic_write, text_file
from kedge.tools.text.match import find_match
from kedge.tools.text.text_file import TextFile

P = ParamSpec("P")
T = TypeVar("T")

# Each edit searches the whole file; all of them together take a second or two.
MAX_SEARCHED_CHARS = 50 * 1024 * 1024


class Change(NamedTuple):
    old: str
    new: str
    replace_all: bool = False


class EditPlan(NamedTuple):
    """New content of a file; `before` is None if the file does not exist yet."""

    path: Path
    shown: str
    before: TextFile | None
    data: bytes
    diff: Diff
    notes: list[str]

    @property
    def title(self) -> str:
        return f"{'create' if self.before is None else 'edit'} {self.shown} ({self.diff.counts})"


async def list_edit_access(scope: ToolScope, given: str, changes: Sequence[Change]) -> list[Access]:
    return [make_access(await asyncio.to_thread(plan_edit, scope, given, changes))]


async def run_edit(ctx: ToolContext, given: str, changes: Sequence[Change]) -> Output:
    planned = await asyncio.to_thread(plan_edit, ctx, given, changes)
    return await apply_plan(ctx, planned)


def plan_edit(scope: ToolScope, given: str, changes: Sequence[Change]) -> EditPlan:
    """Apply the changes in memory. Blocks. Raises ToolError."""
    path = resolve_path(scope, given)
    shown = display_path(scope, path)
    before = text_file.read(path, shown)
    check_file_known(scope, before, shown)
    if len(changes) * len(before.text) > MAX_SEARCHED_CHARS:
        raise ToolError(
            f"{len(changes)} edits are too many for a file as large as {shown}.",
            "Make a few at a time, or use a script.",
        )
    file, notes = before, list[str]()
    for i, change in enumerate(changes, 1):
        try:
            old, new = change.old.replace("\r\n", "\n"), change.new.replace("\r\n", "\n")
            match = find_match(file.text, old, new, replace_all=change.replace_all, shown=shown)
        except ToolError as error:
            if len(changes) == 1:
                raise
            raise ToolError(
                f"Edit {i} of {len(changes)}: {error.problem}",
                f"{error.advice}\n\nNothing was written.",
                summary=f"{error.summary} Nothing was written.",
            ) from error
        notes += [match.note] if match.note else []
        file = msgspec.structs.replace(file, raw=file.replace_spans(match.spans))
    return EditPlan(path, shown, before, before.encode_text(file.raw), diff(before.text, file.text, shown), notes)


def check_file_known(scope: ToolScope, file: TextFile, shown: str) -> None:
    known = scope.known_files.get(str(file.path))
    if known is None:
        raise ToolError(
            f"{shown} has not been read in this conversation.",
            "View it first, then repeat the edit.",
            summary=f"Not changed: the agent has not read {shown} yet.",
        )
    if known != file.digest:
        raise ToolError(
            f"{shown} has changed since you last saw it.",
            "View it again, then repeat the edit.",
            summary=f"Not changed: {shown} is no longer as the agent last read it.",
        )


def make_access(planned: EditPlan) -> Access:
    params = {"path": planned.shown, "diff": planned.diff.text}
    return Access(kind="write", subject=str(planned.path), description=planned.title, params=params)


async def run_uninterrupted(write: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run a function in a thread and wait for its end even if canceled: the change must be recorded."""
    task = asyncio.ensure_future(asyncio.to_thread(write, *args, **kwargs))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait({task})
        raise


async def apply_plan(ctx: ToolContext, planned: EditPlan) -> Output:
    status = None if planned.before is None else planned.before.status
    counts = (planned.diff.added, planned.diff.removed)
    async with ctx.record_change(planned.path, planned.data, counts):
        await run_uninterrupted(atomic_write.replace, planned.path, planned.data, status, planned.shown)
    done = "Created" if planned.before is None else "Edited"
    lines = [f"{done} {planned.shown} ({planned.diff.counts}).", *planned.notes, "", planned.diff.text.rstrip("\n")]
    metadata = {
        "files": {str(planned.path): compute_digest(planned.data)},
        "path": planned.shown,
        "diff": planned.diff.text,
        "added": planned.diff.added,
        "removed": planned.diff.removed,
    }
    return Output(content="\n".join(lines), metadata=metadata)
