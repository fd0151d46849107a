"""`write`: creates a file, or replaces one whose current content the model has seen."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import msgspec

from kedge.files.diffs import diff
from kedge.files.safe_open import stat_resolved
from kedge.protocol.tools import BUILT_IN_TOOLS
from kedge.tools.errors import ToolError
from kedge.tools.port import Access, Output, Tool, ToolContext, ToolScope, display_path, resolve_path
from kedge.tools.text.edit_plan import EditPlan, apply_plan, check_file_known, make_access
from kedge.tools.text.text_file import MAX_EDIT_BYTES, read_text_file


class WriteParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    path: Annotated[str, msgspec.Meta(description="the file")]
    content: Annotated[str, msgspec.Meta(description="all of its text")]


def plan_edit(scope: ToolScope, params: WriteParams) -> EditPlan:
    """Blocks. Raises ToolError."""
    path = resolve_path(scope, params.path)
    shown = display_path(scope, path)
    content = params.content
    if _is_new(path, shown):
        above = next(parent for parent in path.parents if os.path.lexists(parent))
        if not above.is_dir():
            raise ToolError(f"{display_path(scope, above)} is not a directory; nothing can be written below it.")
        data = content.encode("utf-8", "replace")
        if len(data) > MAX_EDIT_BYTES:
            raise ToolError(f"That is over {MAX_EDIT_BYTES >> 20} MiB.", "Write it with a command or a script.")
        return EditPlan(path, shown, None, data, diff("", content, shown), [])
    before = read_text_file(path, shown)
    check_file_known(scope, before, shown)
    # The line endings of the file are kept.
    plain = content.replace("\r\n", "\n")
    raw = plain.replace("\n", "\r\n") if before.newline == "\r\n" else plain
    return EditPlan(path, shown, before, before.encode_text(raw), diff(before.text, plain, shown), [])


def _is_new(path: Path, shown: str) -> bool:
    try:
        return stat_resolved(path) is None
    except OSError as error:
        raise ToolError(f"{shown} cannot be written: {error.strerror}.") from error


async def list_access(scope: ToolScope, params: WriteParams) -> Sequence[Access]:
    return [make_access(await asyncio.to_thread(plan_edit, scope, params))]


async def run(ctx: ToolContext, params: WriteParams) -> Output:
    return await apply_plan(ctx, await asyncio.to_thread(plan_edit, ctx, params))


TOOL = Tool(facts=BUILT_IN_TOOLS["write"], params=WriteParams, run=run, list_access=list_access)
