"""`view`: a file's lines with their numbers, or an image. Whatever the path leads to, it never blocks."""

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
from kedge.tools.paths import resolve, shown_path
from kedge.tools.port import Access, Output, Tool, ToolContext, ToolScope
from kedge.tools.search.similar_paths import similar_paths
from kedge.tools.text import paging
from kedge.tools.text.paging import MAX_IMAGE_BYTES, MAX_LINES, Found, Page, Picture, Unreadable

Line = Annotated[int, msgspec.Meta(ge=1, description="the first line to show; the file's first is 1")]
Lines = Annotated[int, msgspec.Meta(ge=1, le=MAX_LINES, description="how many lines to show")]


class ViewParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    path: Annotated[str, msgspec.Meta(description="the file")]
    offset: Line = 1
    limit: Lines = MAX_LINES


async def list_access(place: ToolScope, params: ViewParams) -> Sequence[Access]:
    """Told wherever the file is: what is free to read is the judge's to say, and a rule may forbid it."""
    path = await asyncio.to_thread(resolve, place, params.path)
    return (Access(kind="read", subject=str(path), description=f"read {shown_path(place, path)}"),)


async def run(ctx: ToolContext, params: ViewParams) -> Output:
    stop = threading.Event()
    try:
        return await asyncio.to_thread(_view, ctx, params, stop)
    finally:
        stop.set()  # a thread can't be cancelled, and a file may be of any size


def _view(place: ToolScope, params: ViewParams, stop: threading.Event) -> Output:
    path = resolve(place, params.path)
    shown = shown_path(place, path)
    try:
        found = paging.read(path, params.offset, params.limit, stop)
    except FileNotFoundError as error:
        raise ToolError(_missing(place, path, shown)) from error
    except IsADirectoryError as error:
        raise ToolError(f"{shown} is a directory; use ls to see what is in it.") from error
    except Unreadable as error:
        raise ToolError(f"{shown} {error}") from error
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise ToolError(f"{shown} cannot be read ({reason}); check the path and its permissions.") from error
    if isinstance(found, Picture):
        return _picture(place, path, shown, found)
    return Output(content=_page(shown, found, params), metadata=_metadata(path, found))


def _picture(place: ToolScope, path: Path, shown: str, found: Picture) -> Output:
    if not place.sees_images:
        text = f"{shown} is an image ({found.mime_type}, {found.size:,} bytes), and this model cannot see images."
        return Output(content=text, metadata=_metadata(path, found))
    if found.data is None:
        raise ToolError(
            f"{shown} is an image of {found.size:,} bytes, and at most {MAX_IMAGE_BYTES:,} can be shown;"
            " make a smaller copy with bash, and view that."
        )
    return Output(
        content=f"{shown} is an image ({found.mime_type}, {found.size:,} bytes). It follows.",
        metadata=_metadata(path, found),
        images=(Image(found.mime_type, found.data),),
    )


def _page(shown: str, page: Page, params: ViewParams) -> str:
    if page.is_empty:
        return f"{shown} is empty."
    if not page.lines:
        raise ToolError(f"{shown} has {_lines(page.total or 0)}; offset {params.offset} is behind its end.")
    text = "\n".join(f"{params.offset + index:>6}\t{line}" for index, line in enumerate(page.lines))
    last = params.offset + len(page.lines) - 1
    notes = list(page.notes)
    if page.goes_on:
        of = f"of {page.total:,}" if page.total is not None else f"of a file of {page.size:,} bytes"
        notes.append(f"Lines {params.offset:,} to {last:,} {of} are shown. Go on with offset={last + 1}.")
    return "\n".join([text, "", *(f"[{note}]" for note in notes)]) if notes else text


def _metadata(path: Path, found: Found) -> dict[str, object] | None:
    """What the model has seen; a file of which not every byte was read is not known."""
    return {"files": {str(path): found.digest}} if found.digest else None


def _missing(place: ToolScope, path: Path, shown: str) -> str:
    names = [shown_path(place, similar) for similar in similar_paths(path, place.directory)]
    if names:
        return (
            f"There is no file {shown}. Did you mean {', '.join(names[:-1])}{' or ' if names[1:] else ''}{names[-1]}?"
        )
    return f"There is no file {shown}. Use ls or glob to find the right path."


def _lines(count: int) -> str:
    return "1 line" if count == 1 else f"{count:,} lines"


TOOL = Tool(facts=BUILT_IN_TOOLS["view"], params=ViewParams, run=run, list_access=list_access)
