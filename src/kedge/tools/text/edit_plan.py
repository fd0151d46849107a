"""Edits of a file: planned, shown as a diff, and written atomically.

An edit of a file that changed since the model saw it is refused: it would overwrite somebody's work. In a file that
the model has not seen, text that is there exactly once may be replaced: the match shows that the model knows it.
An edit has exactly one place in the text, or fails with an error that shows the model the nearest lines.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, ParamSpec, TypeVar

import msgspec

from kedge.files.diffs import MAX_RESULT_CHARS, Diff, cut_diff, diff
from kedge.files.states import compute_digest
from kedge.tools.errors import ToolError
from kedge.tools.port import Access, Output, ToolContext, ToolScope, display_path, resolve_path
from kedge.tools.text.matching import find_match
from kedge.tools.text.text_file import TextFile, read_text_file, replace_file

P = ParamSpec("P")
T = TypeVar("T")

# Each edit searches the whole file; all of them together take a second or two.
MAX_SEARCHED_CHARS = 50 * 1024 * 1024

MAX_ECHO_LINES = 40  # of a diff that is shown to the model; of a longer one it sees the line numbers
MAX_ECHO_HUNKS = 20


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
    is_viewed: bool = True  # False: the model knows only the text that it replaced

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
    before = read_text_file(path, shown)
    is_viewed = _is_viewed(scope, path)
    if is_viewed or not _may_edit_unviewed(scope, path, changes):
        check_file_known(scope, before, shown)
    else:
        _check_unchanged(scope, before, shown)
    if len(changes) * len(before.text) > MAX_SEARCHED_CHARS:
        raise ToolError(
            f"{len(changes)} edits are too many for a file as large as {shown}.",
            "Make a few at a time, or use a script.",
        )
    file, notes = before, list[str]()
    for i, change in enumerate(changes, 1):
        try:
            old, new = change.old.replace("\r\n", "\n"), change.new.replace("\r\n", "\n")
            match = find_match(file.text, old, new, replace_all=change.replace_all, shown=shown, is_exact=not is_viewed)
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
    data, changed = before.encode_text(file.raw), diff(before.text, file.text, shown)
    return EditPlan(path, shown, before, data, changed, notes, is_viewed)


def check_file_known(scope: ToolScope, file: TextFile, shown: str) -> None:
    if not _is_viewed(scope, file.path):
        raise ToolError(
            f"{shown} has not been read in this conversation.",
            "View it first, then repeat the edit.",
            summary=f"Not changed: the agent has not read {shown} yet.",
        )
    _check_unchanged(scope, file, shown)


def _is_viewed(scope: ToolScope, path: Path) -> bool:
    return str(path) in scope.known_files and str(path) not in scope.unviewed_files


def _may_edit_unviewed(scope: ToolScope, path: Path, changes: Sequence[Change]) -> bool:
    """Not outside the workspace or behind a rule: the error of an edit shows lines of the file before any permission
    is asked."""
    is_readable = path.is_relative_to(scope.directory) and not (scope.is_hidden and scope.is_hidden(str(path)))
    return is_readable and not any(change.replace_all for change in changes)


def _check_unchanged(scope: ToolScope, file: TextFile, shown: str) -> None:
    if scope.known_files.get(str(file.path), file.digest) != file.digest:
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
        await run_uninterrupted(replace_file, planned.path, planned.data, status, planned.shown)
    metadata: dict[str, object] = {
        "files": {str(planned.path): compute_digest(planned.data)},
        "path": planned.shown,
        "diff": cut_diff(planned.diff.text, MAX_RESULT_CHARS),
        "added": planned.diff.added,
        "removed": planned.diff.removed,
    }
    if planned.before is None:
        metadata["created"] = [str(planned.path)]
    if not planned.is_viewed:
        metadata["unviewed"] = [str(planned.path)]
    return Output(content=_describe_change(planned), metadata=metadata)


def _describe_change(planned: EditPlan) -> str:
    """Return what the model needs to go on; people see the diff of the metadata."""
    if planned.before is None:
        lines = planned.diff.added
        return f"Created {planned.shown}, {lines:,} line{'' if lines == 1 else 's'}."
    done = f"Edited {planned.shown} ({planned.diff.counts})."
    text = cut_diff(planned.diff.text, MAX_RESULT_CHARS).rstrip("\n")
    if text.count("\n") < MAX_ECHO_LINES + 2:  # with the two lines of file names
        return "\n".join([done, *planned.notes, "", text])
    return "\n".join([f"{done} {_describe_hunks(planned.diff.hunks)}", *planned.notes])


def _describe_hunks(hunks: Sequence[tuple[int, int]]) -> str:
    ranges = [f"{first:,}-{last:,}" if last > first else f"{first:,}" for first, last in hunks[:MAX_ECHO_HUNKS]]
    more = f" and {len(hunks) - MAX_ECHO_HUNKS:,} more places" if len(hunks) > MAX_ECHO_HUNKS else ""
    is_one = len(hunks) == 1 and hunks[0][0] >= hunks[0][1]
    return f"The changed line{' is' if is_one else 's are'} now {', '.join(ranges)}{more}."
