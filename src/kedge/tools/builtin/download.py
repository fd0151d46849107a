"""`download`: saves a file from the web when it is complete."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Annotated, BinaryIO

import msgspec

from kedge.files.safe_open import open_directory, stat_resolved
from kedge.protocol.tools import BUILT_IN_TOOLS
from kedge.tools.builtin.fetch import load_http
from kedge.tools.errors import ToolError
from kedge.tools.port import Access, Output, Tool, ToolContext, ToolScope, display_path, resolve_path
from kedge.tools.text.edit_plan import run_uninterrupted
from kedge.tools.text.text_file import publish_file
from kedge.tools.web.addresses import parse_url

MAX_BYTES = 200 * 1024 * 1024
_REPORT_EVERY = 1024 * 1024


class DownloadParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    url: Annotated[str, msgspec.Meta(description="http:// or https://")]
    path: Annotated[str, msgspec.Meta(description="the file to make")]
    timeout: Annotated[float, msgspec.Meta(gt=0, le=600, description="in seconds")] = 120.0


async def list_access(scope: ToolScope, params: DownloadParams) -> Sequence[Access]:
    url = parse_url(params.url).geturl()
    path = await asyncio.to_thread(_new_file, scope, params.path)
    description = f"download {url} to {display_path(scope, path)}"
    return [
        Access(kind="fetch", subject=url, description=description, params={"url": url}),
        Access(kind="write", subject=str(path), description=description, params={"path": display_path(scope, path)}),
    ]


async def run(ctx: ToolContext, params: DownloadParams) -> Output:
    path = await asyncio.to_thread(_new_file, ctx, params.path)
    shown = display_path(ctx, path)
    partial = f".{path.name[:100]}.{secrets.token_hex(6)}.part"
    try:
        with ExitStack() as opened:
            # Runs to its end even if canceled, so that the partial file is removed.
            at, file = await run_uninterrupted(_create, opened, path.parent, partial)
            with file:
                size = await _fill(ctx, params, file)
            try:
                async with ctx.record_change(path):
                    await run_uninterrupted(publish_file, partial, path.name, at)
            except FileExistsError:
                raise ToolError(f"{shown} was created by somebody else in the meantime; nothing was saved.") from None
    except OSError as error:
        raise ToolError(f"{shown} cannot be written: {error.strerror}.") from error
    return Output(content=f"Saved {params.url} as {shown} ({size:,} bytes).", metadata={"path": shown, "bytes": size})


def _new_file(scope: ToolScope, given: str) -> Path:
    path = resolve_path(scope, given)
    shown = display_path(scope, path)
    try:
        is_there = stat_resolved(path) is not None
    except OSError as error:
        raise ToolError(f"{shown} cannot be written: {error.strerror}.") from error
    if is_there:
        raise ToolError(f"{shown} already exists.", "Choose another name.")
    return path


async def _fill(ctx: ToolContext, params: DownloadParams, file: BinaryIO) -> int:
    size = reported = 0
    http = await asyncio.to_thread(load_http)
    allow_private = ctx.config.fetch.allow_private
    async with http.get(params.url, allow_private=allow_private, timeout_s=params.timeout) as page:
        if page.status != 200:
            raise ToolError(f"{page.url} answered {page.status}; nothing was saved.")
        async for chunk in page.chunks(MAX_BYTES):
            await asyncio.to_thread(file.write, chunk)
            size += len(chunk)
            if size - reported >= _REPORT_EVERY:
                reported = size
                ctx.write(f"{size >> 20} MiB\n")
    await asyncio.to_thread(file.flush)
    return size


def _create(opened: ExitStack, directory: Path, partial: str) -> tuple[int, BinaryIO]:
    """Open the directory, creating it if necessary, and a new file in it. `opened` closes both and removes the file."""
    at = opened.enter_context(open_directory(directory, create=True))
    fd = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666, dir_fd=at)
    opened.callback(_remove, partial, at)
    return at, opened.enter_context(os.fdopen(fd, "wb"))


def _remove(partial: str, at: int) -> None:
    with suppress(FileNotFoundError):
        os.unlink(partial, dir_fd=at)


TOOL = Tool(facts=BUILT_IN_TOOLS["download"], params=DownloadParams, run=run, list_access=list_access)
