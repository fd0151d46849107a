"""Values shared by wires, client and agent. The `repr` of a value never shows an API key."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal
from urllib.parse import urlsplit

import msgspec

from kedge.config.schema import Effort, WireName
from kedge.http.proxy import ConnectionOptions, is_loopback
from kedge.protocol.messages import FinishReason, Message
from kedge.protocol.runs import EFFORTS, Usage

# Effort that a model accepts together with tools: any, only a missing field, or only the value "none".
EffortWithTools = Literal["any", "unset", "none"]
MAX_SILENCE_S = 300.0  # reasoning models send nothing for minutes


def env_prefix(provider_id: str) -> str:
    """Return the prefix of a provider's environment variables, for example `OPENAI`."""
    return "".join(char if char.isalnum() else "_" for char in provider_id).upper()


class ModelInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Properties of a model; None means unknown. Prices are in dollars per million tokens."""

    context_window: int | None = None
    max_output_tokens: int | None = None
    input_price: float | None = None
    output_price: float | None = None
    cache_read_price: float | None = None
    cache_write_price: float | None = None
    images: bool = True
    tools: bool = True
    reasoning: bool = False  # accepts an effort
    efforts: tuple[Effort, ...] = ("minimal", "low", "medium", "high")  # those that it knows
    is_tiny: bool = False  # gets a short system prompt: it cannot follow a long one
    long_prompt_tokens: int | None = None  # a longer prompt multiplies the prices by the factors below
    long_input_factor: float = 1.0
    long_output_factor: float = 1.0
    adaptive_thinking: bool = False  # on the anthropic wire: accepts an effort and rejects a token budget
    effort_with_tools: EffortWithTools = "any"  # on the chat wire

    def clamp_effort(self, effort: Effort) -> Effort:
        """Return the effort if the model knows it, else the next lower one that it knows, else its lowest."""
        wanted = EFFORTS.index(effort)
        known = [EFFORTS.index(each) for each in self.efforts] or [wanted]
        return EFFORTS[max((each for each in known if each <= wanted), default=min(known))]


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """Address and settings of a model. `model` is the provider's name; empty: the first one that the server lists."""

    provider: str
    model: str
    base_url: str
    api_key: str | None = None
    key_header: str = ""  # HTTP header for the API key; empty: the default of the wire
    wire: WireName = "chat"
    headers: Mapping[str, str] = {}
    extra_body: Mapping[str, Any] = {}
    info: ModelInfo = ModelInfo()
    extension: str = ""  # name of the provider package whose own wire is used
    connection: ConnectionOptions = ConnectionOptions()
    max_silence_s: float | None = None  # as configured; 0: none
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
        """True if it runs on this machine: no price, no proxy."""
        return urlsplit(self.base_url).scheme == "local" or is_loopback(self.base_url)

    @property
    def silence_s(self) -> float:
        """How long it may send nothing. A model of this machine may do that always: some read slowly."""
        if self.max_silence_s is None:
            return math.inf if self.is_local else MAX_SILENCE_S
        return self.max_silence_s or math.inf

    def __repr__(self) -> str:
        return f"Endpoint({self.name} at {self.host})"


class ToolSpec(msgspec.Struct, frozen=True):
    name: str
    description: str
    input_schema: Mapping[str, Any]


class StepRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One model call. Wires put the parts that change least first, for the provider's prompt cache."""

    system: str
    history: Sequence[Message]
    tools: Sequence[ToolSpec] = ()
    max_output_tokens: int | None = None
    effort: Effort | None = None
    search_price: float | None = None  # of one search by the provider itself, in dollars; None: it may not search


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


# Deltas. `block` identifies a part of the answer where a wire interleaves several. The first delta of a block opens it.


class TextDelta(msgspec.Struct, frozen=True):
    text: str
    block: str = "text"


class ReasoningDelta(msgspec.Struct, frozen=True):
    """Reasoning text, and a signature that must be returned verbatim in later requests."""

    text: str = ""
    block: str = "reasoning"
    signature: str = ""  # pieces are concatenated
    redacted: bool = False


class ToolCallDelta(msgspec.Struct, frozen=True):
    """A piece of a tool call. Id and name come complete and once, before or with the first piece of input."""

    block: str
    id: str = ""
    name: str = ""
    input: str = ""


# The beginning of the ids of calls that the model wrote as the text of its answer. The message has both, but only the
# calls are sent back.
TEXT_CALL_ID = "text_call_"


class BlockEnd(msgspec.Struct, frozen=True):
    """The part is complete (only on wires that say so)."""

    block: str


class UsageReport(msgspec.Struct, frozen=True, kw_only=True):
    """Usage of the step so far. Fields of a later report replace those of an earlier one."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_tokens: int | None = None
    cache_write_tokens: int | None = None
    cost: float | None = None  # if the provider reports it
    search_cost: float | None = None  # of searches by the provider itself


class StepEnd(msgspec.Struct, frozen=True):
    """The step is complete; `reason` is why the model stopped."""

    reason: FinishReason


class StreamEnd(msgspec.Struct, frozen=True):
    """The server announced the end of the stream."""


Delta = TextDelta | ReasoningDelta | ToolCallDelta | BlockEnd | UsageReport | StepEnd | StreamEnd

CHARS_PER_TOKEN = 4  # of English and of code; good enough for a value marked as estimated
_MILLION = 1_000_000


def compute_usage(report: UsageReport | None, info: ModelInfo, prompt_chars: int, output_chars: int) -> Usage:
    """Return the usage of a step. Missing counts are estimated from the characters, and then `estimated` is set.

    A cost of 0.0 means that the price is zero or not known.
    """
    known = report or UsageReport()
    if not (known.input_tokens or known.output_tokens or known.cache_read_tokens or known.cache_write_tokens):
        known = UsageReport(
            cost=known.cost, search_cost=known.search_cost
        )  # servers that do not count report nothing, or zero
    cached = known.cache_read_tokens is not None or known.cache_write_tokens is not None
    is_input_known = known.input_tokens is not None or cached
    usage = Usage(
        input_tokens=known.input_tokens or 0 if is_input_known else estimate_tokens(prompt_chars),
        output_tokens=estimate_tokens(output_chars) if known.output_tokens is None else known.output_tokens,
        cache_read_tokens=known.cache_read_tokens or 0,
        cache_write_tokens=known.cache_write_tokens or 0,
        estimated=not is_input_known or known.output_tokens is None,
    )
    cost = compute_cost(usage, info) if known.cost is None else known.cost
    return msgspec.structs.replace(usage, cost=cost + (known.search_cost or 0.0))


def compute_cost(usage: Usage, info: ModelInfo) -> float:
    """Return dollars, not rounded. Cached tokens without a known price cost as much as other input."""
    input_price = info.input_price or 0.0
    read_price = input_price if info.cache_read_price is None else info.cache_read_price
    write_price = input_price if info.cache_write_price is None else info.cache_write_price
    input_cost = (
        usage.input_tokens * input_price + usage.cache_read_tokens * read_price + usage.cache_write_tokens * write_price
    )
    output_cost = usage.output_tokens * (info.output_price or 0.0)
    if info.long_prompt_tokens is not None and usage.prompt_tokens > info.long_prompt_tokens:
        input_cost, output_cost = input_cost * info.long_input_factor, output_cost * info.long_output_factor
    return (input_cost + output_cost) / _MILLION


def estimate_tokens(chars: int) -> int:
    """Round up: a short text has at least one token."""
    return -(-chars // CHARS_PER_TOKEN)
