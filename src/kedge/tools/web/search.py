"""Web search services: the request to each, and its results. One request, bounded in time and size."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable, Mapping
from html import unescape
from typing import Any, NamedTuple, cast
from urllib.parse import urlencode, urlsplit

import msgspec

from kedge.config.schema import SearchConfig, SearchService
from kedge.http.client import HttpClient
from kedge.http.connection import Connector, HttpError
from kedge.http.proxy import find_proxy
from kedge.protocol.text_safety import shorten, visible_line
from kedge.tools.errors import ToolError
from kedge.version import VERSION

TIMEOUT_S = 30.0
MAX_BYTES = 4 * 1024 * 1024
MAX_RESULTS = 10
MAX_TITLE_CHARS = 200
MAX_TEXT_CHARS = 1_000
_TAG = re.compile(r"</?[a-zA-Z][^<>]{0,200}>")
_ADVICE = {
    401: "The API key is rejected. Tell the user: kedge login {name}, or search.api_key in the configuration.",
    402: "There is no credit left there. Tell the user.",
    403: "Access is denied. Tell the user.",
    429: "The limit of requests is reached. Wait; other words will not help.",
}


class SearchResult(NamedTuple):
    title: str
    url: str
    text: str


class SearchAnswer(NamedTuple):
    results: list[SearchResult]
    cost: float | None  # in dollars, if the service says


def _fields_of_exa(query: str, count: int) -> dict[str, Any]:
    return {"query": query, "numResults": count, "contents": {"text": {"maxCharacters": MAX_TEXT_CHARS}}}


def _fields_of_parallel(query: str, count: int) -> dict[str, Any]:
    return {"search_queries": [query], "mode": "basic", "advanced_settings": {"max_results": count}}


def _fields_of_tavily(query: str, count: int) -> dict[str, Any]:
    return {"query": query, "max_results": count}


def _fields_of_brave(query: str, count: int) -> dict[str, Any]:
    return {"q": query, "count": count}


def _fields_of_searxng(query: str, _: int) -> dict[str, Any]:
    return {"q": query, "format": "json"}


class Service(NamedTuple):
    url: str  # of its API; empty: the user's own server
    fields: Callable[[str, int], dict[str, Any]]  # of the request: as JSON in a POST, else in the address
    is_post: bool = True
    key_header: str = "x-api-key"
    key_prefix: str = ""
    results: tuple[str, ...] = ("results",)  # where they are in the answer
    text: tuple[str, ...] = ("content",)  # the fields that may have the text
    path: str = ""


SERVICES: Mapping[SearchService, Service] = {
    "searxng": Service("", _fields_of_searxng, is_post=False, path="/search"),
    "exa": Service("https://api.exa.ai/search", _fields_of_exa, text=("text", "highlights", "summary")),
    "parallel": Service("https://api.parallel.ai/v1/search", _fields_of_parallel, text=("excerpts",)),
    "tavily": Service(
        "https://api.tavily.com/search", _fields_of_tavily, key_header="Authorization", key_prefix="Bearer "
    ),
    "brave": Service(
        "https://api.search.brave.com/res/v1/web/search",
        _fields_of_brave,
        is_post=False,
        key_header="X-Subscription-Token",
        results=("web", "results"),
        text=("description", "extra_snippets"),
    ),
}


def host_of(config: SearchConfig) -> str:
    """The host that gets the queries, for people."""
    service = _service_of(config)
    return urlsplit(config.url or SERVICES[service].url).netloc.rpartition("@")[2] or service


def _service_of(config: SearchConfig) -> SearchService:
    assert config.provider not in (None, "model")  # then the tool is not offered
    return config.provider


async def search(config: SearchConfig, key: str | None, query: str, count: int) -> SearchAnswer:
    """Send a query to the configured service. Raises `ToolError`."""
    name = _service_of(config)
    service = SERVICES[name]
    url = (config.url or service.url).rstrip("/")
    if service.path and not url.endswith(service.path):
        url += service.path
    headers = {"User-Agent": f"kedge/{VERSION}", "Accept": "application/json", "Accept-Encoding": "identity"}
    if key:
        headers[service.key_header] = f"{service.key_prefix}{key}"
    fields, body = service.fields(query, count), None
    if service.is_post:
        body = msgspec.json.encode(fields)
        headers["Content-Type"] = "application/json"
    else:
        url += f"?{urlencode(fields)}"
    status, data = await _send(name, url, headers, body)
    if status != 200:
        advice = _ADVICE.get(status, "Do without it, or try again later.").format(name=name)
        raise ToolError(f"The search service {name} answered {status}.", advice)
    try:
        answer: Any = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        hint = " A SearXNG server must allow `json` in `search.formats`." if name == "searxng" else ""
        raise ToolError(f"What {name} answered is not JSON.{hint}", "Tell the user.") from error
    return SearchAnswer(_read_results(service, answer, count), _read_cost(answer))


async def _send(name: str, url: str, headers: Mapping[str, str], body: bytes | None) -> tuple[int, bytes]:
    connector = Connector(lambda origin: find_proxy(f"{origin.scheme}://{origin.netloc}", os.environ))
    client = HttpClient(connector.open, connect_s=TIMEOUT_S, stall_s=TIMEOUT_S)
    try:
        method = "GET" if body is None else "POST"
        async with asyncio.timeout(TIMEOUT_S), client.send(method, url, headers, body) as got:
            data = b""
            async for chunk in got.chunks():
                data += chunk
                if len(data) > MAX_BYTES:
                    raise ToolError(f"{name} answered with more than {MAX_BYTES >> 20} MiB, which is the limit.")
            return got.status, data
    except TimeoutError:
        raise ToolError(f"{name} did not answer within {TIMEOUT_S:g} s;", "try again later, or do without.") from None
    except HttpError as error:
        raise ToolError(f"{name} cannot be reached: {error};", "do without, or tell the user.") from error
    finally:
        client.close()


def _read_results(service: Service, answer: Any, count: int) -> list[SearchResult]:
    for name in service.results:
        answer = cast("dict[str, Any]", answer).get(name) if isinstance(answer, dict) else None
    listed = cast("list[Any]", answer) if isinstance(answer, list) else []
    found = [_read_result(service, cast("dict[str, Any]", each)) for each in listed if isinstance(each, dict)]
    return [each for each in found if each is not None][: min(count, MAX_RESULTS)]


def _read_result(service: Service, fields: Mapping[str, Any]) -> SearchResult | None:
    url = fields.get("url")
    if not isinstance(url, str) or _scheme_of(url) not in ("http", "https"):
        return None
    texts = (_join_text(fields.get(name)) for name in service.text)
    text = next((each for each in texts if each), "")
    title = _clean(_join_text(fields.get("title")), MAX_TITLE_CHARS)
    return SearchResult(title or visible_line(url), visible_line(url)[:2_000], _clean(text, MAX_TEXT_CHARS))


def _scheme_of(url: str) -> str:
    try:
        return urlsplit(url).scheme
    except ValueError:
        return ""


def _join_text(value: Any) -> str:
    match value:
        case str():
            return value
        case [*items]:
            return " … ".join(each for each in items if isinstance(each, str))
        case _:
            return ""


def _clean(text: str, most: int) -> str:
    """One line without markup, which some services put around the words of the query."""
    return shorten(" ".join(visible_line(unescape(_TAG.sub("", text[: most * 4]))).split()), most)


def _read_cost(answer: Any) -> float | None:
    match answer:
        case {"costDollars": {"total": int() | float() as cost}} if 0 <= cost < 100:
            return float(cost)
        case _:
            return None
