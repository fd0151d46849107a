"""The wires that every promise about models is kept on, and how a run is sent over each of them."""

from __future__ import annotations

import json
from typing import Any, NamedTuple, Protocol

from kedge.config.schema import WireName


class Way(NamedTuple):
    """The provider that a run names to speak the wire, its variables, and what the conversation is called there."""

    provider: str
    key_variable: str
    url_variable: str
    conversation: str = "messages"


WAYS: dict[WireName, Way] = {
    "chat": Way("openai", "OPENAI_API_KEY", "OPENAI_BASE_URL"),
    # OpenAI at another address than its own is spoken to on the chat wire; Azure is always at one.
    "responses": Way("azure", "AZURE_OPENAI_API_KEY", "AZURE_OPENAI_ENDPOINT", "input"),
    "anthropic": Way("anthropic", "ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL"),
    "gemini": Way("gemini", "GEMINI_API_KEY", "GEMINI_BASE_URL", "contents"),
}
WIRES = list(WAYS)


class Served(Protocol):
    """Where the scripted model is."""

    @property
    def base_url(self) -> str: ...
    @property
    def anthropic_url(self) -> str: ...


def url_of(wire: WireName, models: Served) -> str:
    return models.anthropic_url if wire in ("anthropic", "gemini") else models.base_url


def access(wire: WireName, models: Served, key: str) -> dict[str, str]:
    """The variables that give access to the scripted model over this wire."""
    way = WAYS[wire]
    return {way.url_variable: url_of(wire, models), way.key_variable: key}


def environ(wire: WireName, models: Served, key: str, model: str = "tester") -> dict[str, str]:
    """The environment of a run that is to go over this wire, and over no other."""
    nothing = {name: "" for way in WAYS.values() for name in (way.key_variable, way.url_variable)}
    return {**nothing, **access(wire, models, key), "KEDGE_MODEL": f"{WAYS[wire].provider}/{model}"}


def conversation(body: dict[str, Any]) -> list[Any]:
    """What was said, in a request of any wire."""
    return next(body[way.conversation] for way in WAYS.values() if way.conversation in body)


def prompt_text(body: dict[str, Any]) -> str:
    """What a request of the chat wire says to the model, without its end: the next request can go on from there."""
    return json.dumps({"tools": body["tools"], "messages": body["messages"]})[: -len("]}")]
