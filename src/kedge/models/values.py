"""What passes between an adapter, the HTTP client and the agent. Nothing that holds a key shows it."""

from __future__ import annotations

from urllib.parse import urlsplit

import msgspec

from kedge.protocol.messages import FinishReason
from kedge.protocol.runs import Usage


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """Where a model is reached. `model` is the provider's own name for it; empty: whatever is served there."""

    provider: str
    model: str
    base_url: str
    api_key: str | None = None

    @property
    def name(self) -> str:
        return f"{self.provider}/{self.model}" if self.model else self.provider

    @property
    def host(self) -> str:
        return urlsplit(self.base_url).netloc

    def __repr__(self) -> str:
        return f"Endpoint({self.name} at {self.host})"


class HttpRequest(msgspec.Struct, frozen=True):
    method: str
    url: str
    headers: dict[str, str]
    body: bytes = b""

    @property
    def host(self) -> str:
        return urlsplit(self.url).netloc

    def __repr__(self) -> str:
        return f"HttpRequest({self.method} to {self.host}, {len(self.body)} bytes)"


class TextDelta(msgspec.Struct, frozen=True):
    text: str


class ReasoningDelta(msgspec.Struct, frozen=True):
    text: str


class UsageReport(msgspec.Struct, frozen=True):
    """What the step used so far; a later report replaces an earlier one."""

    usage: Usage


class StepEnd(msgspec.Struct, frozen=True):
    """The model has said why it stopped."""

    reason: FinishReason


class StreamEnd(msgspec.Struct, frozen=True):
    """Nothing more will come."""


Delta = TextDelta | ReasoningDelta | UsageReport | StepEnd | StreamEnd
