"""The ways of speaking to models. A wire is pure functions; a provider is data on top of one."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from kedge.config.schema import WireName
from kedge.models.values import Delta, Endpoint, HttpRequest, StepRequest
from kedge.models.wires import anthropic, chat, gemini, responses
from kedge.models.wires.anthropic_stream import AnthropicStream
from kedge.models.wires.chat_stream import ChatStream
from kedge.models.wires.decoding import SseEvent
from kedge.models.wires.encoded_cache import Encode, Said
from kedge.models.wires.gemini_stream import GeminiStream
from kedge.models.wires.requests import one_page, parse_listing
from kedge.models.wires.responses_stream import ResponsesStream


class Stream(Protocol):
    """The events of one answer, in their order."""

    def parse_event(self, event: SseEvent) -> list[Delta]: ...


class Wire(NamedTuple):
    prepare_request: Callable[[Endpoint, StepRequest, Said | None], HttpRequest]
    stream: Callable[[Endpoint, StepRequest], Stream]
    prepare_listing: Callable[[Endpoint], HttpRequest]
    parse_listing: Callable[[bytes], list[str]]
    encode: Encode  # a history, as the wire has it
    next_listing: Callable[[HttpRequest, bytes], HttpRequest | None] = one_page


WIRES: dict[WireName, Wire] = {
    "chat": Wire(chat.prepare_request, ChatStream, chat.prepare_listing, parse_listing, chat.encode),
    "anthropic": Wire(
        anthropic.prepare_request, AnthropicStream, anthropic.prepare_listing, parse_listing, anthropic.encode
    ),
    # Models are listed as on the chat wire: the vendor's two share an address.
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
