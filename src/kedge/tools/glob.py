"""`glob`: files by their names, the newest first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec

from kedge.tools.errors import ToolError
from kedge.tools.port import Output, Place, Tool, ToolContext, Want
from kedge.tools.searching import MAX_RESULTS, files, readable, start_of, wants_to_read


class GlobParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pattern: Annotated[str, msgspec.Meta(min_length=1, description="like *.py or src/**/*.{ts,tsx}")]
    path: Annotated[str, msgspec.Meta(description="the directory to search in; the workspace unless given")] = "."


async def wants(place: Place, params: GlobParams) -> Sequence[Want]:
    return await wants_to_read(place, params.path)


async def run(ctx: ToolContext, params: GlobParams) -> Output:
    start = start_of(ctx, params.path)
    if not start.path.is_dir():
        raise ToolError(f"{start.shown} is not a directory.")
    names = await files(ctx, start, params.pattern, is_newest_first=True)
    if not names:
        return Output(content=f"No file matches {params.pattern}.", metadata={"count": 0})
    is_outside = start.base != ctx.directory
    lines = [readable(str(start.base / name) if is_outside else name) for name in names[:MAX_RESULTS]]
    if len(names) > MAX_RESULTS:
        lines += ["", f"({len(names)} files match; these are the newest {MAX_RESULTS}. Narrow the pattern for others.)"]
    return Output(content="\n".join(lines), metadata={"count": len(names)})


GLOB = Tool(name="glob", params=GlobParams, run=run, is_read_only=True, wants=wants)
