"""`write`: a whole file, new or in the place of one that the model has seen as it is."""

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
from kedge.tools.paths import resolve, shown_path
from kedge.tools.port import Access, Output, Tool, ToolContext, ToolScope
from kedge.tools.text import text_file
from kedge.tools.text.edit_plan import Planned, access, check_known, written


class WriteParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    path: Annotated[str, msgspec.Meta(description="the file")]
    content: Annotated[str, msgspec.Meta(description="all of its text")]


def plan(place: ToolScope, params: WriteParams) -> Planned:
    """Blocks: not for the loop."""
    path = resolve(place, params.path)
    shown = shown_path(place, path)
    content = params.content
    if _is_new(path, shown):
        above = next(parent for parent in path.parents if os.path.lexists(parent))
        if not above.is_dir():
            raise ToolError(f"{shown_path(place, above)} is not a directory, so that nothing can be written below it.")
        data = content.encode("utf-8", "replace")
        if len(data) > text_file.MAX_EDIT_BYTES:
            raise ToolError(f"That is over {text_file.MAX_EDIT_BYTES >> 20} MiB. Let a command or a script write it.")
        return Planned(path, shown, None, data, diff("", content, shown), [])
    before = text_file.read(path, shown)
    check_known(place, before, shown)
    # Keeps the way in which the file ends its lines; who wants another can edit with a command.
    plain = content.replace("\r\n", "\n")
    raw = plain.replace("\n", "\r\n") if before.newline == "\r\n" else plain
    return Planned(path, shown, before, before.encoded(raw), diff(before.text, plain, shown), [])


def _is_new(path: Path, shown: str) -> bool:
    try:
        return stat_resolved(path) is None
    except OSError as error:
        raise ToolError(f"{shown} cannot be written: {error.strerror}.") from error


async def list_access(place: ToolScope, params: WriteParams) -> Sequence[Access]:
    return [access(await asyncio.to_thread(plan, place, params))]


async def run(ctx: ToolContext, params: WriteParams) -> Output:
    return await written(ctx, await asyncio.to_thread(plan, ctx, params))


TOOL = Tool(facts=BUILT_IN_TOOLS["write"], params=WriteParams, run=run, list_access=list_access)
