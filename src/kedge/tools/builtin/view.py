"""`view`: numbered lines of a file, or an image. Never blocks, whatever the path is."""

from __future__ import annotations

import asyncio
import heapq
import os
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated

import msgspec

from kedge.files.diffs import BoundedMatcher, TooMuchWork
from kedge.files.safe_open import open_directory
from kedge.protocol.messages import Image
from kedge.protocol.tools import BUILT_IN_TOOLS
from kedge.tools.errors import ToolError
from kedge.tools.port import Access, Output, Tool, ToolContext, ToolScope, display_path, resolve_path
from kedge.tools.text import paging
from kedge.tools.text.paging import MAX_IMAGE_BYTES, MAX_LINES, Content, ImageFile, Page, Unreadable

Line = Annotated[int, msgspec.Meta(ge=1, description="the first line to show; the file's first is 1")]
Lines = Annotated[int, msgspec.Meta(ge=1, le=MAX_LINES, description="how many lines to show")]


NOTES_CHARS = 500  # room for the notes below a page


class ViewParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    path: Annotated[str, msgspec.Meta(description="the file")]
    offset: Line = 1
    limit: Lines = MAX_LINES


async def list_access(scope: ToolScope, params: ViewParams) -> Sequence[Access]:
    path = await asyncio.to_thread(resolve_path, scope, params.path)
    return (Access(kind="read", subject=str(path), description=f"read {display_path(scope, path)}"),)


async def run(ctx: ToolContext, params: ViewParams) -> Output:
    stop = threading.Event()
    try:
        return await asyncio.to_thread(_view, ctx, params, stop)
    finally:
        stop.set()  # a thread cannot be canceled, and a file may have any size


def _view(scope: ToolScope, params: ViewParams, stop: threading.Event) -> Output:
    path = resolve_path(scope, params.path)
    shown = display_path(scope, path)
    try:
        max_bytes = max(scope.max_result_chars - NOTES_CHARS, NOTES_CHARS)
        content = paging.read(path, params.offset, params.limit, max_bytes, stop)
    except FileNotFoundError as error:
        raise ToolError(f"There is no file {shown}.", _suggest_path(scope, path)) from error
    except IsADirectoryError as error:
        raise ToolError(f"{shown} is a directory;", "use ls to see what is in it.") from error
    except Unreadable as error:
        raise ToolError(f"{shown} {error}") from error
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise ToolError(f"{shown} cannot be read ({reason});", "check the path and its permissions.") from error
    if isinstance(content, ImageFile):
        return _show_image(scope, path, shown, content)
    return Output(content=_show_page(shown, content, params), metadata=_metadata(path, content))


def _show_image(scope: ToolScope, path: Path, shown: str, content: ImageFile) -> Output:
    if not scope.sees_images:
        text = f"{shown} is an image ({content.mime_type}, {content.size:,} bytes), and this model cannot see images."
        return Output(content=text, metadata=_metadata(path, content))
    if content.data is None:
        raise ToolError(
            f"{shown} is an image of {content.size:,} bytes; the limit is {MAX_IMAGE_BYTES:,};",
            "make a smaller copy with bash, and view that.",
        )
    return Output(
        content=f"{shown} is an image ({content.mime_type}, {content.size:,} bytes). It follows.",
        metadata=_metadata(path, content),
        images=(Image(content.mime_type, content.data),),
    )


def _show_page(shown: str, page: Page, params: ViewParams) -> str:
    if page.is_empty:
        return f"{shown} is empty."
    if not page.lines:
        lines = "1 line" if page.total == 1 else f"{page.total or 0:,} lines"
        raise ToolError(f"{shown} has {lines}; offset {params.offset} is after its end.")
    text = "\n".join(f"{params.offset + index:>6}\t{line}" for index, line in enumerate(page.lines))
    last = params.offset + len(page.lines) - 1
    notes = list(page.notes)
    if page.goes_on:
        of = f"of {page.total:,}" if page.total is not None else f"of a file of {page.size:,} bytes"
        notes.append(f"Lines {params.offset:,} to {last:,} {of} are shown. Go on with offset={last + 1}.")
    return "\n".join([text, "", *(f"[{note}]" for note in notes)]) if notes else text


def _metadata(path: Path, content: Content) -> dict[str, object] | None:
    """Record the digest that the model has seen, if the whole file was read."""
    return {"files": {str(path): content.digest}} if content.digest else None


def _suggest_path(scope: ToolScope, path: Path) -> str:
    names = [display_path(scope, similar) for similar in similar_paths(path, scope.directory)]
    if names:
        return f"Did you mean {', '.join(names[:-1])}{' or ' if names[1:] else ''}{names[-1]}?"
    return "Use ls or glob to find the right path."


TOOL = Tool(facts=BUILT_IN_TOOLS["view"], params=ViewParams, run=run, list_access=list_access)

MAX_PATHS = 3
_MAX_ENTRIES = 5_000  # of a larger tree only a part is searched
_MAX_S = 0.25  # for a slow disk
_MIN_RATIO = 0.6
_MAX_STEPS = 1_000_000  # of all comparisons: a fifth of a second
_SKIPPED = frozenset({".git", "node_modules", "__pycache__", ".venv", "venv", "target", ".hg", ".svn"})


def similar_paths(path: Path, workspace: Path) -> list[Path]:
    """Return up to three: first from the same directory, then with the same or a similar name in the workspace."""
    found = [workspace / str(path).lstrip("/")]  # a workspace path written as an absolute one
    found += [path.parent / name for name in _find_similar(path.name, _list_names(path.parent))]
    if len([one for one in found if _exists(one)]) < MAX_PATHS:
        tree = _list_tree(workspace)
        found += [one for one in tree if one.name.lower() == path.name.lower()]
        alike = set(_find_similar(path.name, sorted({one.name for one in tree})))
        found += [one for one in tree if one.name in alike]
    return [one for one in dict.fromkeys(found) if one != path and _exists(one)][:MAX_PATHS]


def _exists(path: Path) -> bool:
    """Return whether a path exists, without following links: names behind a link must not be revealed."""
    try:
        with open_directory(path.parent) as at:
            os.stat(path.name, dir_fd=at, follow_symlinks=False)
    except OSError:
        return False
    return True


def _find_similar(name: str, names: list[str]) -> list[str]:
    """Return the most similar names first, ignoring case."""
    by_lower: dict[str, list[str]] = {}
    for one in names:
        by_lower.setdefault(one.lower(), []).append(one)
    nearest = heapq.nlargest(MAX_PATHS, _compare(name.lower(), by_lower))
    return [one for _, lower in nearest for one in by_lower[lower]]


def _compare(name: str, names: Iterable[str]) -> Iterator[tuple[float, str]]:
    """Yield (ratio, name) of similar names, until `_MAX_STEPS`."""
    matcher = BoundedMatcher(None, "", name)
    matcher.max_steps = _MAX_STEPS
    try:
        for one in names:
            matcher.set_seq1(one)
            if matcher.real_quick_ratio() >= _MIN_RATIO and matcher.quick_ratio() >= _MIN_RATIO:
                ratio = matcher.ratio()
                if ratio >= _MIN_RATIO:
                    yield ratio, one
    except TooMuchWork:
        pass


def _list_names(directory: Path) -> list[str]:
    try:
        with os.scandir(directory) as entries:
            return sorted(entry.name for entry, _ in zip(entries, range(_MAX_ENTRIES), strict=False))
    except OSError:
        return []


def _list_tree(root: Path) -> list[Path]:
    """Return files of a tree within the bounds, nearest to the root first."""
    deadline = time.monotonic() + _MAX_S
    found: list[Path] = []
    pending = [root]
    visited = 0
    while pending and visited < _MAX_ENTRIES and time.monotonic() < deadline:
        directory = pending.pop(0)
        try:
            with os.scandir(directory) as entries:
                for entry in entries:
                    visited += 1
                    if entry.is_dir(follow_symlinks=False):
                        if entry.name not in _SKIPPED:
                            pending.append(directory / entry.name)
                    else:
                        found.append(directory / entry.name)
                    if visited >= _MAX_ENTRIES:
                        break
        except OSError:
            continue
    return sorted(found, key=lambda path: (len(path.parts), str(path)))
