"""Whether a key is right: the provider is asked, as cheaply as it can be. A list of models that is shown to everybody
proves nothing; then one short answer does."""

from __future__ import annotations

import asyncio
import contextlib

import msgspec

from kedge.models.client import Models
from kedge.models.errors import ConfigError, ModelError, Refused, Transient
from kedge.models.values import Endpoint, HttpRequest, StepRequest
from kedge.models.wires import requests
from kedge.protocol.messages import Message, Text

CHECK_S = 20.0  # shorter than a client waits for an answer
MAX_OUTPUT_TOKENS = 16  # the least that every provider takes
# Providers whose list is open, and that say what a key is good for.
_KEY_PATHS = {"openrouter": "/key"}


async def check_key(models: Models, endpoint: Endpoint, limit_s: float = CHECK_S) -> None:
    """Return if the provider takes the key of the endpoint. Raises what it says against it: `auth` is a refusal,
    `Transient` no answer, and `bad_response` that it does not say."""
    try:
        async with asyncio.timeout(limit_s):
            await _check(models, endpoint)
    except TimeoutError:
        raise Transient("unreachable", f"{endpoint.host} did not answer within {limit_s:g} s") from None


async def _check(models: Models, endpoint: Endpoint) -> None:
    if path := _KEY_PATHS.get(endpoint.provider):
        with contextlib.suppress(_NotSaid):
            return await _says(models, endpoint, path)
    names: list[str] = []
    refusal: ModelError | None = None
    try:
        names = await models.offered(endpoint)
        if not await _is_open(models, endpoint):
            return None
    except Refused as error:
        if error.code == "quota":
            return None  # of an account, and so the key is one of its
        refusal = error if error.code == "auth" else None  # a key may be good for answers, and not for the list
    return await _call(models, endpoint, names, refusal)


class _NotSaid(Exception):
    pass


async def _says(models: Models, endpoint: Endpoint, path: str) -> None:
    own = {"Authorization": f"Bearer {endpoint.api_key}"}
    headers = requests.headers(endpoint, own, is_stream=False)
    try:
        await models.ask(endpoint, HttpRequest("GET", f"{endpoint.base_url}{path}", headers))
    except Refused as error:
        if error.code == "auth":
            raise
        raise _NotSaid from error


async def _is_open(models: Models, endpoint: Endpoint) -> bool:
    """Whether everybody is shown the list."""
    try:
        await models.offered(msgspec.structs.replace(endpoint, api_key=None))
    except Refused:
        return False
    return True


async def _call(models: Models, endpoint: Endpoint, names: list[str], refusal: ModelError | None) -> None:
    model = endpoint.model or next(iter(names), "")
    if not model:
        raise refusal or Refused("bad_response", f"{endpoint.host} does not say whether the key is right")
    asked = StepRequest(system="Answer with one word.", history=[_hello()], max_output_tokens=MAX_OUTPUT_TOKENS)
    stream = models.stream(msgspec.structs.replace(endpoint, model=model), asked)
    try:
        async with contextlib.aclosing(stream) as groups:
            await anext(groups, None)
    except (Transient, ConfigError):
        raise
    except Refused as error:
        if error.code in ("auth", "bad_response"):
            raise refusal or error from error
        # Whatever else is wrong with the question, it was asked by somebody who may ask.
        if refusal is not None and error.code == "model_not_found":
            raise refusal from error


def _hello() -> Message:
    return Message(
        id="key-check", session_id="key-check", run_id="key-check", role="user", parts=[Text("Hi")], created_at=0.0
    )
