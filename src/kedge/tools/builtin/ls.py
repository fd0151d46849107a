"""`ls`: a directory as a tree, with file counts of deeper directories."""

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
from kedge.tools.search.file_search import (
    MAX_RESULTS,
    Start,
    find_start,
    is_visible,
    list_files,
    list_read_access,
    to_text,
)

MAX_DEPTH = 10
MAX_VISITED = 1_000  # directories, to distinguish an ignored directory from an empty one


class LsParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    path: Annotated[str, msgspec.Meta(description="the directory; the workspace unless given")] = "."
    depth: Annotated[int, msgspec.Meta(ge=1, le=MAX_DEPTH, description="how many levels to show")] = 2


class Node:
    """A directory of the tree; `count` is the number of files in and below it."""

    def __init__(self) -> None:
        self.directories: dict[str, Node] = {}
        self.list_files: list[str] = []
        self.count = 0


async def list_access(scope: ToolScope, params: LsParams) -> Sequence[Access]:
    return await list_read_access(scope, params.path)


async def run(ctx: ToolContext, params: LsParams) -> Output:
    start = await find_start(ctx, params.path)
    if not start.is_dir:
        raise ToolError(f"{start.shown} is not a directory;", "use view to read it.")
    names = await list_files(ctx, start)
    prefix = "" if start.below == "." else f"{start.below}/"
    root = _build_tree(name.removeprefix(prefix) for name in names)
    lines = list(_format_tree(root, params.depth))
    total = f"{start.shown}: {root.count} {'file' if root.count == 1 else 'files'}"
    if not names and await asyncio.to_thread(_has_files, ctx, start):
        total += " (what is in it is ignored by git or .kedgeignore; bash with `ls -A` shows it)"
    if len(lines) > MAX_RESULTS:
        lines = [
            *lines[:MAX_RESULTS],
            f"({len(lines) - MAX_RESULTS} more entries; list a directory below, or less depth)",
        ]
    return Output(content="\n".join([total, *lines]), metadata={"count": root.count})


def _has_files(scope: ToolScope, start: Start) -> bool:
    """Return whether the directory has a visible file, among the first `MAX_VISITED` directories. Blocks."""
    with suppress(OSError), open_directory(start.path) as at:
        for directory, _, names, _ in itertools.islice(os.fwalk(dir_fd=at), MAX_VISITED):
            beside = Path(start.below, directory)
            if any(is_visible(scope, start, str(beside / name)) for name in names):
                return True
    return False


def _build_tree(names: Iterable[str]) -> Node:
    root = Node()
    for name in names:
        *directories, file = to_text(name).split("/")
        node = root
        node.count += 1
        for directory in directories:
            node = node.directories.setdefault(directory, Node())
            node.count += 1
        node.list_files.append(file)
    return root


def _format_tree(node: Node, depth: int, indent: str = "  ") -> Iterator[str]:
    for name, below in sorted(node.directories.items()):
        if depth > 1:
            yield f"{indent}{name}/"
            yield from _format_tree(below, depth - 1, indent + "  ")
        else:
            yield f"{indent}{name}/ ({below.count} {'file' if below.count == 1 else 'files'})"
    yield from (f"{indent}{name}" for name in sorted(node.list_files))


TOOL = Tool(facts=BUILT_IN_TOOLS["ls"], params=LsParams, run=run, list_access=list_access)
