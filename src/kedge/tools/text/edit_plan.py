"""A change of a file, from what the model wants to what is on disk: planned, shown, and done whole or not at all.

It is refused if the model has not seen the file, or not as it is now: what it would overwrite is somebody's work.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, ParamSpec, TypeVar

import msgspec

from kedge.files.diffs import Diff, diff
from kedge.tools.errors import ToolError
from kedge.tools.paths import resolve, shown_path
from kedge.tools.port import Access, Output, ToolContext, ToolScope
from kedge.tools.text import atomic_write, text_file
from kedge.tools.text.match import find
from kedge.tools.text.text_file import TextFile

P = ParamSpec("P")
T = TypeVar("T")

# Each edit searches the whole file: a second or two in all. Fifty edits of a file of 1 MiB, five of the largest.
MAX_SEARCHED_CHARS = 50 * 1024 * 1024


class Change(NamedTuple):
    old: str
    new: str
    replace_all: bool = False


class Planned(NamedTuple):
    """What will be written, and over what: `before` is None where there is no file yet."""

    path: Path
    shown: str
    before: TextFile | None
    data: bytes
    diff: Diff
    notes: list[str]

    @property
    def title(self) -> str:
        return f"{'create' if self.before is None else 'edit'} {self.shown} ({self.diff.counts})"


async def list_edit_access(place: ToolScope, given: str, changes: Sequence[Change]) -> list[Access]:
    return [access(await asyncio.to_thread(plan, place, given, changes))]


async def carry_out(ctx: ToolContext, given: str, changes: Sequence[Change]) -> Output:
    planned = await asyncio.to_thread(plan, ctx, given, changes)
    return await written(ctx, planned)


def plan(place: ToolScope, given: str, changes: Sequence[Change]) -> Planned:
    """Blocks: not for the loop."""
    path = resolve(place, given)
    shown = shown_path(place, path)
    before = text_file.read(path, shown)
    check_known(place, before, shown)
    if len(changes) * len(before.text) > MAX_SEARCHED_CHARS:
        raise ToolError(
            f"{len(changes)} edits are too many for a file as large as {shown}. Make a few at a time, or use a script."
        )
    file, notes = before, list[str]()
    for i, change in enumerate(changes, 1):
        try:
            old, new = change.old.replace("\r\n", "\n"), change.new.replace("\r\n", "\n")
            match = find(file.text, old, new, replace_all=change.replace_all, shown=shown)
        except ToolError as error:
            if len(changes) == 1:
                raise
            raise ToolError(f"Edit {i} of {len(changes)}: {error.text}\n\nNothing was written.") from error
        notes += [match.note] if match.note else []
        file = msgspec.structs.replace(file, raw=file.replaced(match.spans))
    return Planned(path, shown, before, before.encoded(file.raw), diff(before.text, file.text, shown), notes)


def check_known(place: ToolScope, file: TextFile, shown: str) -> None:
    known = place.known_files.get(str(file.path))
    if known is None:
        raise ToolError(f"{shown} has not been read in this conversation. View it first, then repeat the edit.")
    if known != file.digest:
        raise ToolError(f"{shown} was changed since you last saw it. View it again, then repeat the edit.")


def access(planned: Planned) -> Access:
    params = {"path": planned.shown, "diff": planned.diff.text}
    return Access(kind="write", subject=str(planned.path), description=planned.title, params=params)


async def to_its_end(write: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """In a thread, which cannot be cancelled: what it does to the file is waited for, so that it goes on record."""
    writing = asyncio.ensure_future(asyncio.to_thread(write, *args, **kwargs))
    try:
        return await asyncio.shield(writing)
    except asyncio.CancelledError:
        await asyncio.wait({writing})
        raise


async def written(ctx: ToolContext, planned: Planned) -> Output:
    status = None if planned.before is None else planned.before.status
    counts = (planned.diff.added, planned.diff.removed)
    async with ctx.record_change(planned.path, planned.data, counts):
        # Whoever is cancelled meanwhile has written all of it or nothing.
        await to_its_end(atomic_write.replace, planned.path, planned.data, status, planned.shown)
    done = "Created" if planned.before is None else "Edited"
    lines = [f"{done} {planned.shown} ({planned.diff.counts}).", *planned.notes, "", planned.diff.text.rstrip("\n")]
    metadata = {
        "files": {str(planned.path): text_file.compute_digest(planned.data)},
        "path": planned.shown,
        "diff": planned.diff.text,
        "added": planned.diff.added,
        "removed": planned.diff.removed,
    }
    return Output(content="\n".join(lines), metadata=metadata)
