"""The real context windows of models on the user's own servers, which are asked for them.

Such a server loads a model with a window that a setting or the memory of the machine decides, often a small part of
what the model could read. Hosted providers are never asked.
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, cast
from urllib.parse import quote, urlsplit

import msgspec

from kedge.models.errors import ModelError
from kedge.models.providers import BUILT_IN
from kedge.models.values import Endpoint, HttpRequest
from kedge.models.wires.decoding import as_object
from kedge.models.wires.requests import make_headers, make_key_headers

TIMEOUT_S = 1.0  # for all questions, which are asked at once
KEPT_S = 60.0  # how long an answer is kept, also that there is none
_MIN_TOKENS, _MAX_TOKENS = 256, 1_000_000_000
# Fields of a model in the list of models: vLLM and SGLang, gateways, and Mistral's and llama.cpp's relatives.
_LISTED_FIELDS = ("max_model_len", "context_length", "context_window", "max_context_length", "n_ctx")
_NUM_CTX = re.compile(r"(?m)^\s*num_ctx\s+(\d{1,9})\s*$")

Fetch = Callable[[Endpoint, HttpRequest], Awaitable[bytes]]


class _NotLoaded(Exception):
    """The server will decide about the window when it loads the model: at the first request."""


class ServerWindows:
    """`fetch` sends a request to the server of an endpoint and returns the body. Raises `ModelError`."""

    def __init__(self, fetch: Fetch, clock: Callable[[], float] = time.monotonic) -> None:
        self._fetch = fetch
        self._clock = clock
        self._known: dict[tuple[str | None, ...], tuple[float, int | None]] = {}

    async def add_to(self, endpoint: Endpoint) -> Endpoint:
        """Return the endpoint with its context window, if that was unknown and the server tells it. Never raises."""
        if endpoint.info.context_window is not None or not endpoint.model or not is_own_server(endpoint):
            return endpoint
        window = await self._find(endpoint)
        if window is None:
            return endpoint
        info = msgspec.structs.replace(endpoint.info, context_window=window)
        return msgspec.structs.replace(endpoint, info=info)

    async def _find(self, endpoint: Endpoint) -> int | None:
        key = (endpoint.base_url, endpoint.model, endpoint.api_key)  # a server may tell nothing without a key
        known = self._known.get(key)
        if known is not None and self._clock() - known[0] < KEPT_S:
            return known[1]
        try:
            window = await self._ask(endpoint)
        except _NotLoaded:
            return None  # asked again before the next step
        if window is None and known is not None:
            window = known[1]  # it may be busy now
        self._known[key] = (self._clock(), window)
        return window

    async def _ask(self, endpoint: Endpoint) -> int | None:
        """Ask in all ways that the server may understand, at once. Raises `_NotLoaded`."""
        ways = _WAYS.get(endpoint.provider)
        if ways is None:
            ways = _ALL_WAYS if _is_near(endpoint) else (_ask_list,)
        server = _Server(endpoint, self._fetch)
        answers = await asyncio.gather(*(_try_way(way, server) for way in ways))
        if found := [answer for answer in answers if isinstance(answer, int)]:
            return found[0]
        if any(isinstance(answer, _NotLoaded) for answer in answers):
            raise _NotLoaded
        return None


def is_own_server(endpoint: Endpoint) -> bool:
    """Return whether an endpoint is not at a vendor's address. Other clouds have no Chat Completions of their own."""
    if endpoint.extension or urlsplit(endpoint.base_url).scheme not in ("http", "https"):
        return False
    if endpoint.host in _vendor_hosts():
        return False
    return endpoint.wire == "chat" or _is_near(endpoint)


def _vendor_hosts() -> frozenset[str]:
    return frozenset(
        urlsplit(provider.base_url).netloc for provider in BUILT_IN if provider.base_url and not provider.is_local
    )


def _is_near(endpoint: Endpoint) -> bool:
    """Return whether the server is on this machine or in the same network."""
    host = (urlsplit(endpoint.base_url).hostname or "").lower()
    try:
        return endpoint.is_local or ipaddress.ip_address(host).is_private
    except ValueError:
        return "." not in host or host.endswith((".local", ".lan", ".internal"))


class _Server:
    def __init__(self, endpoint: Endpoint, fetch: Fetch) -> None:
        self.model = endpoint.model
        self.root = endpoint.base_url.removesuffix("/v1")
        self.list_url = f"{endpoint.base_url if endpoint.wire == 'chat' else f'{self.root}/v1'}/models"
        self._endpoint = endpoint
        self._fetch = fetch

    async def get(self, url: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return the JSON object at the URL; with `body`, of a POST request. Raises `ModelError` or ValueError."""
        headers = make_headers(self._endpoint, make_key_headers(self._endpoint), is_stream=False)
        if body is None:
            request = HttpRequest("GET", url, headers)
        else:
            headers["Content-Type"] = "application/json"
            request = HttpRequest("POST", url, headers, msgspec.json.encode(body))
        return as_object(msgspec.json.decode(await self._fetch(self._endpoint, request)))


_Way = Callable[[_Server], Awaitable[int | None]]


async def _try_way(way: _Way, server: _Server) -> int | _NotLoaded | None:
    try:
        async with asyncio.timeout(TIMEOUT_S):
            return await way(server)
    except _NotLoaded as not_loaded:
        return not_loaded
    except (ModelError, ValueError, RecursionError, TimeoutError):  # another kind of server; ValueErrors are msgspec's
        return None


async def _ask_ollama(server: _Server) -> int | None:
    """The window of a loaded model, else what the model's own parameters set; nothing else tells it before.

    Ollama cuts longer prompts silently. What a model was trained for says nothing about its window.
    """
    running = await server.get(f"{server.root}/api/ps")
    if "models" not in running:
        return None
    names = {server.model, f"{server.model}:latest"}
    for model in _objects(running["models"]):
        if (model.get("name") in names or model.get("model") in names) and (window := _read(model, "context_length")):
            return window
    shown = await server.get(f"{server.root}/api/show", {"model": server.model})
    trained = next((_read(as_object(shown.get("model_info")), name) for name in _trained_names(shown)), None)
    parameters = shown.get("parameters")
    if isinstance(parameters, str) and (found := _NUM_CTX.search(parameters)) is not None:
        return min(int(found[1]), trained or int(found[1]))
    if trained is not None and server.model.endswith("cloud"):
        return trained  # it runs elsewhere, with all of its window
    raise _NotLoaded


def _trained_names(shown: Mapping[str, Any]) -> list[str]:
    return [name for name in as_object(shown.get("model_info")) if name.endswith(".context_length")]


async def _ask_lm_studio(server: _Server) -> int | None:
    try:
        models = _objects((await server.get(f"{server.root}/api/v0/models")).get("data"))
    except (ModelError, ValueError):
        models = []
    for model in models:
        if model.get("id") == server.model:
            if model.get("state") != "loaded":
                raise _NotLoaded
            return _read(model, "loaded_context_length")
    listed = (await server.get(f"{server.root}/api/v1/models")).get("models")
    for model in _objects(listed):
        instances = _objects(model.get("loaded_instances"))
        if server.model == model.get("key") or any(server.model == instance.get("id") for instance in instances):
            if not instances:
                raise _NotLoaded
            chosen = next((each for each in instances if each.get("id") == server.model), instances[0])
            return _read(as_object(chosen.get("config")), "context_length")
    return None


async def _ask_llama_cpp(server: _Server) -> int | None:
    # A server with several models would load this one for the question.
    props = await server.get(f"{server.root}/props?model={quote(server.model, safe='')}&autoload=false")
    return _read(as_object(props.get("default_generation_settings")), "n_ctx") or _read(props, "n_ctx")


async def _ask_list(server: _Server) -> int | None:
    """Look into the list of models, where vLLM and many others name the window."""
    models = _objects((await server.get(server.list_url)).get("data"))
    for model in models:
        if model.get("id") == server.model:
            fields = {**as_object(model.get("meta")), **model}
            return next((window for name in _LISTED_FIELDS if (window := _read(fields, name))), None)
    return None


# Ways to ask, the most exact first, for the providers whose kind of server is known.
_WAYS: Mapping[str, tuple[_Way, ...]] = {
    "ollama": (_ask_ollama,),
    "lmstudio": (_ask_lm_studio,),
    "llamacpp": (_ask_llama_cpp,),
    "vllm": (_ask_list,),
}
_ALL_WAYS: tuple[_Way, ...] = (_ask_ollama, _ask_lm_studio, _ask_llama_cpp, _ask_list)


def _objects(value: object) -> list[dict[str, Any]]:
    return [as_object(each) for each in cast("list[Any]", value)] if isinstance(value, list) else []


def _read(fields: Mapping[str, Any], name: str) -> int | None:
    """Return a plausible number of tokens."""
    value = fields.get(name)
    return value if isinstance(value, int) and _MIN_TOKENS <= value <= _MAX_TOKENS else None
