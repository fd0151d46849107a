"""The files that a session, or one of its runs, changed: from before the first change to after the last one."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence

from kedge.files import restore
from kedge.files.blobs import Blobs
from kedge.files.diffs import MAX_COUNTED_BYTES, count_lines, diff
from kedge.files.states import State, decode_state
from kedge.files.versions import Versions
from kedge.protocol.files import SessionFile, SessionFiles
from kedge.protocol.messages import replace_surrogates
from kedge.store.port import RecordedChange, Store

MAX_FILES = 1_000  # in one answer; more are counted in a note
MAX_DIFF_CHARS = 1_000_000  # of all diffs in one answer


async def list_changed_files(
    store: Store,
    versions: Versions,
    root: bytes,
    workspace_id: str,
    session_id: str,
    run_id: str | None,
    *,
    diffs: bool,
) -> SessionFiles:
    changes = await store.files.changes(workspace_id, session_id, run_id=run_id)
    notes = await store.files.unwatched_reasons(workspace_id, session_id)
    files = await asyncio.to_thread(_compare, changes, versions.blobs, root + b"/", diffs)
    if len(files) > MAX_FILES:
        notes.append(f"{len(files) - MAX_FILES} more files are not listed")
    return SessionFiles(files[:MAX_FILES], notes)


def _compare(changes: Sequence[RecordedChange], blobs: Blobs, prefix: bytes, with_diffs: bool) -> list[SessionFile]:
    times: dict[bytes, int] = {}
    for change in changes:
        times[change.path] = times.get(change.path, 0) + 1
    targets = restore.find_targets(
        restore.Change(each.path, decode_state(each.before), decode_state(each.after)) for each in changes
    )
    files: list[SessionFile] = []
    left = MAX_DIFF_CHARS
    for target in sorted(targets):
        before, after = target.then, target.expected
        if before == after or restore.is_empty_directory_change(before, after):
            continue
        name = replace_surrogates(os.fsdecode(target.path.removeprefix(prefix)))
        added, removed = count_lines(before, after, blobs)
        text: str | None = None
        if with_diffs and len(files) < MAX_FILES and left > 0:
            text = _diff(before, after, blobs, name)
            left -= len(text)
        files.append(
            SessionFile(
                path=name,
                status=restore.get_status(before, after),
                versions=times[target.path],
                added=added,
                removed=removed,
                diff=text,
            )
        )
    return files


def _diff(before: State, after: State, blobs: Blobs, name: str) -> str:
    """Return a unified diff, or a line that says why there is none."""
    is_chmod = before.kind == after.kind == "file" and before.mode != after.mode
    modes = f"old mode {before.mode:o}\nnew mode {after.mode:o}\n" if is_chmod else ""
    texts = _read_text(before, blobs), _read_text(after, blobs)
    if texts[0] is None or texts[1] is None:
        return f"{modes}{name}: not shown (binary, too large, or no longer kept)\n"
    return modes + diff(texts[0], texts[1], name).text


def _read_text(state: State, blobs: Blobs) -> str | None:
    if state.kind in ("absent", "directory"):
        return ""
    if not state.is_stored or state.size > MAX_COUNTED_BYTES:
        return None
    data = blobs.get(state.digest)
    if data is None or b"\0" in data:
        return None
    text = data.decode("utf-8", "replace")
    return f"link to {text}\n" if state.kind == "link" else text
