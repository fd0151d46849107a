"""`fetch`: a web page as text."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Literal

import msgspec

from kedge.protocol.tools import BUILT_IN_TOOLS
from kedge.tools.errors import ToolError
from kedge.tools.port import Access, Output, Tool, ToolContext, ToolScope
from kedge.tools.process.output import Excerpt, OutputFile
from kedge.tools.text.encodings import web_encoding
from kedge.tools.web.addresses import parse_url
from kedge.tools.web.html import html_to_markdown

MAX_BYTES = 5 * 1024 * 1024  # more text than any model reads
MAX_SHOWN_CHARS = 30_000
_TEXTUAL = ("text/", "application/json", "application/xml", "application/javascript", "application/x-yaml")
# A large page takes up to a second to convert. Such pages share one thread: ten at once would occupy the thread pool of
# all sessions, and keep the event loop from running.
LARGE_BYTES = 256 * 1024
_LARGE_PAGES = ThreadPoolExecutor(1, thread_name_prefix="large-page")


class FetchParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    url: Annotated[str, msgspec.Meta(description="http:// or https://")]
    format: Literal["markdown", "text", "html"] = "markdown"
    timeout: Annotated[float, msgspec.Meta(gt=0, le=120, description="in seconds")] = 30.0


async def list_access(scope: ToolScope, params: FetchParams) -> Sequence[Access]:
    url = parse_url(params.url).geturl()
    return [Access(kind="fetch", subject=url, description=f"fetch {url}", params={"url": url})]


async def run(ctx: ToolContext, params: FetchParams) -> Output:
    http = await asyncio.to_thread(load_http)
    allow_private = ctx.config.fetch.allow_private
    async with http.get(params.url, allow_private=allow_private, timeout_s=params.timeout) as page:
        body = b"".join([chunk async for chunk in page.chunks(MAX_BYTES)])
    if page.media_type and not page.media_type.startswith(_TEXTUAL) and not page.media_type.endswith(("+json", "+xml")):
        raise ToolError(f"{page.url} is {page.media_type}, not text.", "Use download to save it to a file.")
    about = (body, page.charset, page.media_type, page.url, params.format)
    threads = _LARGE_PAGES if len(body) > LARGE_BYTES else None  # None: the default thread pool
    text = await asyncio.get_running_loop().run_in_executor(threads, _convert, *about)
    head = f"{page.url} answered {page.status}" if page.status != 200 else page.url
    return Output(
        content=f"{head}\n\n{await asyncio.to_thread(_shorten, ctx, text)}",
        is_error=page.status >= 400,
        metadata={"url": page.url, "status": page.status, "media_type": page.media_type, "bytes": len(body)},
    )


def load_http():
    """Import the HTTP client at the first fetch: it costs more than all tools together."""
    from kedge.tools.web import http

    return http


def _convert(body: bytes, charset: str | None, media_type: str, url: str, wanted: str) -> str:
    text = body.decode(web_encoding(charset), "replace")
    is_html = media_type in ("text/html", "application/xhtml+xml") or text.lstrip()[:15].lower().startswith(
        "<!doctype html"
    )
    if wanted == "html" or not is_html:
        return text
    is_plain = wanted == "text"
    title, shown = html_to_markdown(text, url, is_plain=is_plain)
    return f"{'' if is_plain else '# '}{title}\n\n{shown}" if title else shown


def _shorten(scope: ToolScope, text: str) -> str:
    excerpt = Excerpt(MAX_SHOWN_CHARS)
    excerpt.add(text)
    if excerpt.parts() is None:
        return text
    saved = OutputFile(scope.scratch)
    saved.write(text)
    saved.spill()
    saved.close()
    return excerpt.text(saved)


TOOL = Tool(facts=BUILT_IN_TOOLS["fetch"], params=FetchParams, run=run, list_access=list_access)
