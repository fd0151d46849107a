"""`glob`: finds files by name, newest first."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Annotated

import msgspec

from kedge.protocol.tools import BUILT_IN_TOOLS
from kedge.tools.errors import ToolError
from kedge.tools.port import Access, Output, Tool, ToolContext, ToolScope
from kedge.tools.search.file_search import MAX_RESULTS, find_start, list_files, list_read_access, pick_newest, to_text


class GlobParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pattern: Annotated[str, msgspec.Meta(min_length=1, description="like *.py or src/**/*.{ts,tsx}")]
    path: Annotated[str, msgspec.Meta(description="the directory to search in; the workspace unless given")] = "."


async def list_access(scope: ToolScope, params: GlobParams) -> Sequence[Access]:
    return await list_read_access(scope, params.path)


async def run(ctx: ToolContext, params: GlobParams) -> Output:
    start = await find_start(ctx, params.path)
    if not start.is_dir:
        raise ToolError(f"{start.shown} is not a directory;", "give the one that it is in as `path`, or view it.")
    found = await list_files(ctx, start, params.pattern)
    if not found:
        return Output(content=f"No file matches {params.pattern}.", metadata={"count": 0})
    names = await asyncio.to_thread(pick_newest, start.base, found, MAX_RESULTS)
    is_outside = start.base != ctx.directory
    lines = [to_text(str(start.base / name) if is_outside else name) for name in names]
    if len(found) > MAX_RESULTS:
        lines += ["", f"({len(found)} files match; these are the newest {MAX_RESULTS}. Narrow the pattern for others.)"]
    return Output(content="\n".join(lines), metadata={"count": len(found)})


TOOL = Tool(facts=BUILT_IN_TOOLS["glob"], params=GlobParams, run=run, list_access=list_access)
