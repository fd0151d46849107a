"""`download`: a file of the web, saved when it is whole."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, BinaryIO

import msgspec

from kedge.tools.addresses import checked_url
from kedge.tools.editing import to_its_end
from kedge.tools.errors import ToolError
from kedge.tools.fetch import load_web
from kedge.tools.paths import resolve, shown_path
from kedge.tools.port import Output, Place, Tool, ToolContext, Want
from kedge.tools.replacing import publish

MAX_BYTES = 200 * 1024 * 1024
_TOLD_EVERY = 1024 * 1024


class DownloadParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    url: Annotated[str, msgspec.Meta(description="http:// or https://")]
    path: Annotated[str, msgspec.Meta(description="the file to make")]
    timeout: Annotated[float, msgspec.Meta(gt=0, le=600, description="in seconds")] = 120.0


async def wants(place: Place, params: DownloadParams) -> Sequence[Want]:
    url = checked_url(params.url).geturl()
    path = await asyncio.to_thread(_new_file, place, params.path)
    told = f"download {url} to {shown_path(place, path)}"
    return [
        Want(kind="fetch", subject=url, description=told, params={"url": url}),
        Want(kind="write", subject=str(path), description=told, params={"path": shown_path(place, path)}),
    ]


async def run(ctx: ToolContext, params: DownloadParams) -> Output:
    path = await asyncio.to_thread(_new_file, ctx, params.path)
    shown = shown_path(ctx, path)
    partial = path.with_name(f".{path.name[:100]}.{secrets.token_hex(6)}.part")
    try:
        try:
            await to_its_end(_make, partial)  # whoever is cancelled meanwhile has it, and takes it away
            with await asyncio.to_thread(_opened, partial) as file:
                size = await _fill(ctx, params, file)
            try:
                async with ctx.changing(path):
                    await to_its_end(publish, partial, path)
            except FileExistsError:
                raise ToolError(f"{shown} was created by somebody else meanwhile; nothing was saved.") from None
        finally:
            partial.unlink(missing_ok=True)
    except OSError as error:
        raise ToolError(f"{shown} cannot be written: {error.strerror}.") from error
    return Output(content=f"Saved {params.url} as {shown} ({size:,} bytes).", metadata={"path": shown, "bytes": size})


def _new_file(place: Place, given: str) -> Path:
    path = resolve(place, given)
    if path.exists():
        raise ToolError(f"{shown_path(place, path)} exists already. Choose another name.")
    return path


async def _fill(ctx: ToolContext, params: DownloadParams, file: BinaryIO) -> int:
    size = told = 0
    web = await asyncio.to_thread(load_web)
    allow_private = ctx.config.fetch.allow_private
    async with web.get(params.url, allow_private=allow_private, timeout_s=params.timeout) as page:
        if page.status != 200:
            raise ToolError(f"{page.url} answered {page.status}; nothing was saved.")
        async for chunk in page.chunks(MAX_BYTES):
            await asyncio.to_thread(file.write, chunk)
            size += len(chunk)
            if size - told >= _TOLD_EVERY:
                told = size
                ctx.write(f"{size >> 20} MiB\n")
    await asyncio.to_thread(file.flush)
    return size


def _make(partial: Path) -> None:
    partial.parent.mkdir(parents=True, exist_ok=True)
    partial.touch(exist_ok=False)


def _opened(partial: Path) -> BinaryIO:
    """No link that takes its place is followed."""
    return os.fdopen(os.open(partial, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "wb")


DOWNLOAD = Tool(name="download", params=DownloadParams, run=run, wants=wants)
