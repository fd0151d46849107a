"""Check an API key with its provider, as cheaply as possible.

A list of models that needs no key proves nothing; then one short answer is requested.
"""

from __future__ import annotations

import asyncio
import contextlib

import msgspec

from kedge.models.client import ModelClient
from kedge.models.errors import ConfigError, ModelError, Refused, Transient
from kedge.models.values import Endpoint, HttpRequest, StepRequest
from kedge.models.wires import requests
from kedge.protocol.messages import Message, Text

CHECK_S = 20.0  # less than clients wait for the response
MAX_OUTPUT_TOKENS = 16  # the minimum of all providers
# Providers with an open list of models and a path that describes the key.
_KEY_PATHS = {"openrouter": "/key"}


async def check_key(models: ModelClient, endpoint: Endpoint, limit_s: float = CHECK_S) -> None:
    """Return if the provider accepts the endpoint's key.

    Raises `Refused` with `auth` if it rejects the key, with `bad_response` if it does not say, and `Transient` if it
    does not answer.
    """
    try:
        async with asyncio.timeout(limit_s):
            await _check(models, endpoint)
    except TimeoutError:
        raise Transient("unreachable", f"{endpoint.host} did not answer within {limit_s:g} s") from None


async def _check(models: ModelClient, endpoint: Endpoint) -> None:
    path = _KEY_PATHS.get(endpoint.provider)
    if path is not None and await _accepts_key(models, endpoint, path):
        return
    names: list[str] = []
    refusal: ModelError | None = None
    try:
        names = await models.list_models(endpoint)
        if not await _lists_without_key(models, endpoint):
            return
    except Refused as error:
        if error.code == "quota":
            return  # the key belongs to an account
        refusal = error if error.code == "auth" else None  # a key may be valid for answers but not for the list
    await _check_answer(models, endpoint, names, refusal)


async def _accepts_key(models: ModelClient, endpoint: Endpoint, path: str) -> bool:
    """Return False if the path does not tell. Raises `Refused` if the key is rejected."""
    own = {"Authorization": f"Bearer {endpoint.api_key}"}
    headers = requests.make_headers(endpoint, own, is_stream=False)
    try:
        await models.fetch(endpoint, HttpRequest("GET", f"{endpoint.base_url}{path}", headers))
    except Refused as error:
        if error.code == "auth":
            raise
        return False
    return True


async def _lists_without_key(models: ModelClient, endpoint: Endpoint) -> bool:
    try:
        await models.list_models(msgspec.structs.replace(endpoint, api_key=None))
    except Refused:
        return False
    return True


async def _check_answer(models: ModelClient, endpoint: Endpoint, names: list[str], refusal: ModelError | None) -> None:
    model = endpoint.model or next(iter(names), "")
    if not model:
        raise refusal or Refused("bad_response", f"{endpoint.host} does not say whether the API key is valid")
    ids = dict.fromkeys(("id", "session_id", "run_id"), "key-check")
    hello = Message(**ids, role="user", parts=[Text("Hi")], created_at=0.0)
    request = StepRequest(system="Answer with one word.", history=[hello], max_output_tokens=MAX_OUTPUT_TOKENS)
    stream = models.stream(msgspec.structs.replace(endpoint, model=model), request)
    try:
        async with contextlib.aclosing(stream) as groups:
            await anext(groups, None)
    except (Transient, ConfigError):
        raise
    except Refused as error:
        if error.code in ("auth", "bad_response"):
            raise refusal or error from error
        # Other errors concern the request: the key was accepted.
        if refusal is not None and error.code == "model_not_found":
            raise refusal from error
