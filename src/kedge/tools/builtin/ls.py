"""`ls`: a directory as a tree, with counts for what lies deeper."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import msgspec

from kedge.files.safe_open import open_directory
from kedge.protocol.tools import BUILT_IN_TOOLS
from kedge.tools.errors import ToolError
from kedge.tools.port import Access, Output, Tool, ToolContext, ToolScope
from kedge.tools.search.file_search import MAX_RESULTS, Start, files, is_shown, list_read_access, readable, start_of

MAX_DEPTH = 10
MAX_LOOKED_AT = 1_000  # directories, to tell ignored files from none


class LsParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    path: Annotated[str, msgspec.Meta(description="the directory; the workspace unless given")] = "."
    depth: Annotated[int, msgspec.Meta(ge=1, le=MAX_DEPTH, description="how many levels to show")] = 2


class Node:
    """A directory: what is in it, and how many files below it."""

    def __init__(self) -> None:
        self.directories: dict[str, Node] = {}
        self.files: list[str] = []
        self.count = 0


async def list_access(place: ToolScope, params: LsParams) -> Sequence[Access]:
    return await list_read_access(place, params.path)


async def run(ctx: ToolContext, params: LsParams) -> Output:
    start = await start_of(ctx, params.path)
    if not start.is_dir:
        raise ToolError(f"{start.shown} is not a directory; use view to read it.")
    names = await files(ctx, start)
    prefix = "" if start.below == "." else f"{start.below}/"
    root = _tree(name.removeprefix(prefix) for name in names)
    lines = list(_lines(root, params.depth))
    total = f"{start.shown}: {root.count} {'file' if root.count == 1 else 'files'}"
    if not names and await asyncio.to_thread(_has_files, ctx, start):
        total += " (what is in it is ignored by git or .kedgeignore; bash with `ls -A` shows it)"
    if len(lines) > MAX_RESULTS:
        lines = [
            *lines[:MAX_RESULTS],
            f"({len(lines) - MAX_RESULTS} more entries; list a directory below, or less depth)",
        ]
    return Output(content="\n".join([total, *lines]), metadata={"count": root.count})


def _has_files(place: ToolScope, start: Start) -> bool:
    """Whether there is a file that a rule lets be seen, in the first of the directories. Blocks: not for the loop."""
    with suppress(OSError), open_directory(start.path) as at:
        for directory, _, names, _ in itertools.islice(os.fwalk(dir_fd=at), MAX_LOOKED_AT):
            beside = Path(start.below, directory)
            if any(is_shown(place, start, str(beside / name)) for name in names):
                return True
    return False


def _tree(names: Iterable[str]) -> Node:
    root = Node()
    for name in names:
        *directories, file = readable(name).split("/")
        node = root
        node.count += 1
        for directory in directories:
            node = node.directories.setdefault(directory, Node())
            node.count += 1
        node.files.append(file)
    return root


def _lines(node: Node, depth: int, indent: str = "  ") -> Iterator[str]:
    for name, below in sorted(node.directories.items()):
        if depth > 1:
            yield f"{indent}{name}/"
            yield from _lines(below, depth - 1, indent + "  ")
        else:
            yield f"{indent}{name}/ ({below.count} {'file' if below.count == 1 else 'files'})"
    yield from (f"{indent}{name}" for name in sorted(node.files))


TOOL = Tool(facts=BUILT_IN_TOOLS["ls"], params=LsParams, run=run, list_access=list_access)
