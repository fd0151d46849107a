"""Runs: accepted prompts, their options, state, usage and end."""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args

import msgspec

from kedge.protocol.bounds import MAX_FILE_NAME_CHARS, MAX_RULE_CHARS, MAX_RULES, MIME_TYPE, MODEL


class Usage(msgspec.Struct, frozen=True):
    """Tokens and cost of a step, a run or a session. Each token counts once: `input_tokens` were not in a cache."""

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    cost: float = 0.0  # in dollars
    estimated: bool = False

    @property
    def prompt_tokens(self) -> int:
        """All tokens that the model read."""
        return self.input_tokens + self.cache_read_tokens + self.cache_write_tokens

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.cache_read_tokens + other.cache_read_tokens,
            self.cache_write_tokens + other.cache_write_tokens,
            self.cost + other.cost,
            self.estimated or other.estimated,
        )


RunKind = Literal["prompt", "shell", "summarize", "agent"]
RunState = Literal["queued", "running", "completed", "failed", "cancelled"]
OnBusy = Literal["queue", "steer", "interrupt", "reject"]
Permissions = Literal["ask", "deny", "allow"]
Effort = Literal["minimal", "low", "medium", "high", "xhigh", "max"]  # lowest first
EFFORTS: tuple[Effort, ...] = get_args(Effort)
Mode = Literal["plan", "ask", "auto-edit", "auto", "yolo"]
MODES: tuple[Mode, ...] = get_args(Mode)  # strictest first

# msgspec decodes it; the pattern is only for the OpenAPI document.
_BASE64 = "^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$"
Base64 = Annotated[bytes, msgspec.Meta(extra_json_schema={"pattern": _BASE64})]

# bounds.py checks them; these patterns are only for the OpenAPI document.
Model = Annotated[str, msgspec.Meta(extra_json_schema={"pattern": f"^{MODEL}$"})]
FileName = Annotated[str, msgspec.Meta(extra_json_schema={"minLength": 1, "maxLength": MAX_FILE_NAME_CHARS})]
MimeType = Annotated[str, msgspec.Meta(extra_json_schema={"pattern": f"^{MIME_TYPE}$"})]
Rule = Annotated[str, msgspec.Meta(extra_json_schema={"maxLength": MAX_RULE_CHARS})]
ToolNames = Annotated[tuple[str, ...], msgspec.Meta(max_length=200)]
Rules = Annotated[tuple[Rule, ...], msgspec.Meta(extra_json_schema={"maxItems": MAX_RULES})]

OPEN_STATES: tuple[RunState, ...] = ("queued", "running")


class Attachment(msgspec.Struct, frozen=True):
    file_name: FileName
    mime_type: MimeType
    content: Base64


# A float, because 20.0 and 20 are the same number in JSON.
Steps = Annotated[float, msgspec.Meta(ge=1, le=1_000_000, multiple_of=1)]


class RunOptions(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Options of one run, which override the configuration. Part of "the same body" (P3)."""

    system: str | None = None  # replaces the agent's instructions; environment and context files follow it
    max_steps: Steps | None = None
    max_cost: Annotated[float, msgspec.Meta(gt=0)] | None = None  # in dollars
    output_schema: dict[str, Any] | None = None  # a JSON schema that the answer must match
    mode: Mode | None = None
    allow: Rules = ()
    deny: Rules = ()
    effort: Effort | None = None  # reasoning effort
    tools: ToolNames | None = None  # only these are offered


class Submission(msgspec.Struct, frozen=True, kw_only=True):
    """A prompt as it was sent. Two with equal fields are "the same body" (P3); `env` and `run_id` do not count."""

    session_id: str
    prompt: str
    kind: RunKind = "prompt"
    attachments: tuple[Attachment, ...] = ()
    on_busy: OnBusy = "queue"
    permissions: Permissions = "ask"
    model: str | None = None
    parent_run_id: str | None = None
    options: RunOptions = RunOptions()


class Receipt(msgspec.Struct, frozen=True):
    run_id: str
    session_id: str
    state: RunState
    seq: int
    replayed: bool


WaitReason = Literal["rate_limit", "usage_limit", "overload", "network"]


class Waiting(msgspec.Struct, frozen=True):
    """Why a running run does nothing at the moment, and the Unix time of its next model call."""

    reason: WaitReason
    until: float


class Run(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The current state of a run; `seq` is that of its acceptance in the log.

    `mode` was chosen for the run, at its acceptance or later; without one the configured mode applies. `place` is only
    there while it is queued in another place than that of its acceptance.
    """

    run_id: str
    session_id: str
    kind: RunKind
    state: RunState
    prompt: str
    on_busy: OnBusy
    permissions: Permissions
    model: str | None
    attempt: int
    cancel_requested: bool
    seq: int
    merged_into: str | None = None
    parent_run_id: str | None = None
    waiting: Waiting | None = None
    mode: Mode | None = None
    place: int | None = None

    @property
    def queue_place(self) -> int:
        """Of the queued runs of a session, the one with the lowest number starts first."""
        return self.seq if self.place is None else self.place

    @property
    def is_open(self) -> bool:
        return self.state in OPEN_STATES


class RunStatus(Run, frozen=True, kw_only=True):
    """A run with its usage so far, its error and its times, for responses; never an event.

    `undone`: an undo removed its messages from the conversation. Times are in seconds of the epoch: when it was
    accepted, when its first turn began, and when it ended.
    """

    usage: Usage
    error: str | None = None
    code: str | None = None
    undone: bool = False
    created_at: float | None = None
    started_at: float | None = None
    ended_at: float | None = None


class QueuedPrompt(msgspec.Struct, frozen=True):
    """A run that has not started, with its attachments."""

    run: Run
    attachments: list[Attachment]


class RunEnd(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The payload of `run_complete`: how a run ended (P2). `error` and `cancelled` are never both set (P8)."""

    session_id: str
    run_id: str
    message_id: str | None
    text: str
    usage: Usage
    error: str | None = None
    code: str | None = None
    cancelled: bool = False
