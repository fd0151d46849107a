"""What passes between an adapter, the HTTP client and the agent. Nothing that holds a key shows it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args
from urllib.parse import urlsplit

import msgspec

from kedge.config.schema import Effort, WireName
from kedge.models.proxy import Way, is_loopback
from kedge.protocol.messages import FinishReason, Message

_EFFORTS: tuple[Effort, ...] = get_args(Effort)  # the least first
# Beside tools, some models take any effort, some only none said, and some only the word "none".
EffortWithTools = Literal["any", "unset", "none"]


def env_prefix(provider_id: str) -> str:
    """Return the prefix of a provider's environment variables, for example `OPENAI`."""
    return "".join(char if char.isalnum() else "_" for char in provider_id).upper()


class ModelInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a model. None: not known. Prices are in dollars for a million tokens."""

    context_window: int | None = None
    max_output_tokens: int | None = None
    input_price: float | None = None
    output_price: float | None = None
    cache_read_price: float | None = None
    cache_write_price: float | None = None
    images: bool = True
    tools: bool = True
    reasoning: bool = False  # takes an effort
    least_effort: Effort = "minimal"
    is_tiny: bool = False  # gets a short prompt: it would be lost in a long one
    long_prompt_tokens: int | None = None  # a step that reads more than this costs so many times as much
    long_input_factor: float = 1.0
    long_output_factor: float = 1.0
    adaptive_thinking: bool = False  # on Anthropic's wire: takes an effort, and refuses a budget for its thoughts
    effort_with_tools: EffortWithTools = "any"  # on the chat wire

    def taken(self, effort: Effort) -> Effort:
        """That effort, or the least that the model takes."""
        return _EFFORTS[max(map(_EFFORTS.index, (effort, self.least_effort)))]


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """Where a model is reached. `model` is the provider's own name for it; empty: whatever is served there."""

    provider: str
    model: str
    base_url: str
    api_key: str | None = None
    key_header: str = ""  # that the key is sent in; empty: as the wire has it
    wire: WireName = "chat"
    headers: Mapping[str, str] = {}
    extra_body: Mapping[str, Any] = {}
    info: ModelInfo = ModelInfo()
    extension: str = ""  # name of the provider package whose own wire is used
    way: Way = Way()
    key_variable: str = ""  # environment variables that error messages name; empty: as `env_prefix` makes them
    url_variable: str = ""

    @property
    def name(self) -> str:
        return f"{self.provider}/{self.model}" if self.model else self.provider

    @property
    def host(self) -> str:
        return urlsplit(self.base_url).netloc

    @property
    def is_local(self) -> bool:
        """On this machine, where it costs nothing but time."""
        return urlsplit(self.base_url).scheme == "local" or is_loopback(self.base_url)

    def __repr__(self) -> str:
        return f"Endpoint({self.name} at {self.host})"


class ToolSpec(msgspec.Struct, frozen=True):
    name: str
    description: str
    input_schema: Mapping[str, Any]


class StepRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One model call. What changes least comes first on every wire, so that the provider's cache holds."""

    system: str
    history: Sequence[Message]
    tools: Sequence[ToolSpec] = ()
    max_output_tokens: int | None = None
    effort: Effort | None = None


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


# Deltas. `block` tells the parts of one answer apart where a wire interleaves them; it means nothing else. A delta of a
# block that was not seen before opens its part.


class TextDelta(msgspec.Struct, frozen=True):
    text: str
    block: str = "text"


class ReasoningDelta(msgspec.Struct, frozen=True):
    """Thoughts, and what must go back verbatim with them."""

    text: str = ""
    block: str = "reasoning"
    signature: str = ""  # pieces are joined
    redacted: bool = False


class ToolCallDelta(msgspec.Struct, frozen=True):
    """A piece of a call. The id and the name come whole, once, before or with the first piece of input."""

    block: str
    id: str = ""
    name: str = ""
    input: str = ""


class BlockEnd(msgspec.Struct, frozen=True):
    """Nothing more of that part will come (on wires that say so)."""

    block: str


class UsageReport(msgspec.Struct, frozen=True, kw_only=True):
    """What the step used so far: a later report replaces those fields of an earlier one that it has."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_tokens: int | None = None
    cache_write_tokens: int | None = None
    cost: float | None = None  # where the provider says it


class StepEnd(msgspec.Struct, frozen=True):
    """The model has said why it stopped."""

    reason: FinishReason


class StreamEnd(msgspec.Struct, frozen=True):
    """Nothing more will come."""


Delta = TextDelta | ReasoningDelta | ToolCallDelta | BlockEnd | UsageReport | StepEnd | StreamEnd
