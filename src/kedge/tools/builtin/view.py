"""`view`: numbered lines of a file, or an image. Never blocks, whatever the path is."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import msgspec

from kedge.protocol.messages import Image
from kedge.protocol.tools import BUILT_IN_TOOLS
from kedge.tools.errors import ToolError
from kedge.tools.paths import display_path, resolve_path
from kedge.tools.port import Access, Output, Tool, ToolContext, ToolScope
from kedge.tools.search.similar_paths import similar_paths
from kedge.tools.text import paging
from kedge.tools.text.paging import MAX_IMAGE_BYTES, MAX_LINES, Content, ImageFile, Page, Unreadable

Line = Annotated[int, msgspec.Meta(ge=1, description="the first line to show; the file's first is 1")]
Lines = Annotated[int, msgspec.Meta(ge=1, le=MAX_LINES, description="how many lines to show")]


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
        stop.set()  # a thread cannot be cancelled, and a file may have any size


def _view(scope: ToolScope, params: ViewParams, stop: threading.Event) -> Output:
    path = resolve_path(scope, params.path)
    shown = display_path(scope, path)
    try:
        content = paging.read(path, params.offset, params.limit, stop)
    except FileNotFoundError as error:
        raise ToolError(_describe_missing(scope, path, shown)) from error
    except IsADirectoryError as error:
        raise ToolError(f"{shown} is a directory; use ls to see what is in it.") from error
    except Unreadable as error:
        raise ToolError(f"{shown} {error}") from error
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise ToolError(f"{shown} cannot be read ({reason}); check the path and its permissions.") from error
    if isinstance(content, ImageFile):
        return _show_image(scope, path, shown, content)
    return Output(content=_show_page(shown, content, params), metadata=_metadata(path, content))


def _show_image(scope: ToolScope, path: Path, shown: str, content: ImageFile) -> Output:
    if not scope.sees_images:
        text = f"{shown} is an image ({content.mime_type}, {content.size:,} bytes), and this model cannot see images."
        return Output(content=text, metadata=_metadata(path, content))
    if content.data is None:
        raise ToolError(
            f"{shown} is an image of {content.size:,} bytes; the limit is {MAX_IMAGE_BYTES:,};"
            " make a smaller copy with bash, and view that."
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
        raise ToolError(f"{shown} has {_count_lines(page.total or 0)}; offset {params.offset} is after its end.")
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


def _describe_missing(scope: ToolScope, path: Path, shown: str) -> str:
    names = [display_path(scope, similar) for similar in similar_paths(path, scope.directory)]
    if names:
        return (
            f"There is no file {shown}. Did you mean {', '.join(names[:-1])}{' or ' if names[1:] else ''}{names[-1]}?"
        )
    return f"There is no file {shown}. Use ls or glob to find the right path."


def _count_lines(count: int) -> str:
    return "1 line" if count == 1 else f"{count:,} lines"


TOOL = Tool(facts=BUILT_IN_TOOLS["view"], params=ViewParams, run=run, list_access=list_access)
