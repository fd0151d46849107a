"""The table of wires. A wire is a set of pure functions for one provider API."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from kedge.config.schema import WireName
from kedge.models.values import Delta, Endpoint, HttpRequest, StepRequest
from kedge.models.wires import anthropic, chat, gemini, responses
from kedge.models.wires.anthropic import AnthropicStream
from kedge.models.wires.chat import ChatStream
from kedge.models.wires.decoding import SseEvent
from kedge.models.wires.gemini import GeminiStream
from kedge.models.wires.requests import Encode, EncodedCache, no_next_page, parse_listing
from kedge.models.wires.responses import ResponsesStream


class Stream(Protocol):
    """Decodes the events of one answer, in their order."""

    def parse_event(self, event: SseEvent) -> list[Delta]: ...


class Wire(NamedTuple):
    prepare_request: Callable[[Endpoint, StepRequest, EncodedCache | None], HttpRequest]
    stream: Callable[[Endpoint, StepRequest], Stream]
    prepare_listing: Callable[[Endpoint], HttpRequest]
    parse_listing: Callable[[bytes], list[str]]
    encode: Encode  # encodes a history
    next_listing: Callable[[HttpRequest, bytes], HttpRequest | None] = no_next_page


WIRES: dict[WireName, Wire] = {
    "chat": Wire(chat.prepare_request, ChatStream, chat.prepare_listing, parse_listing, chat.encode),
    "anthropic": Wire(
        anthropic.prepare_request, AnthropicStream, anthropic.prepare_listing, parse_listing, anthropic.encode
    ),
    # The list of models is that of the chat wire: OpenAI's two wires share an address.
    "responses": Wire(
        responses.prepare_request, ResponsesStream, chat.prepare_listing, parse_listing, responses.encode
    ),
    "gemini": Wire(
        gemini.prepare_request,
        GeminiStream,
        gemini.prepare_listing,
        gemini.parse_listing,
        gemini.encode,
        gemini.next_listing,
    ),
}
