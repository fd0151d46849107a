"""A run: one accepted prompt, from acceptance to its one end."""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args

import msgspec

from kedge.protocol.bounds import MAX_FILE_NAME_CHARS, MAX_RULE_CHARS, MAX_RULES, MIME_TYPE, MODEL


class Usage(msgspec.Struct, frozen=True):
    """Each token is counted once: `input_tokens` are those that came from no cache and went to none."""

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    cost: float = 0.0  # in dollars
    estimated: bool = False

    @property
    def prompt_tokens(self) -> int:
        """All that the model read, wherever it came from."""
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
Effort = Literal["minimal", "low", "medium", "high"]
Mode = Literal["plan", "ask", "auto-edit", "yolo"]
MODES: tuple[Mode, ...] = get_args(Mode)  # strictest first

# msgspec decodes it; the pattern is what the OpenAPI document says of it.
_BASE64 = "^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$"
Base64 = Annotated[bytes, msgspec.Meta(extra_json_schema={"pattern": _BASE64})]

# Checked where every way in passes (bounds.py); here they are only described.
Model = Annotated[str, msgspec.Meta(extra_json_schema={"pattern": f"^{MODEL}$"})]
FileName = Annotated[str, msgspec.Meta(extra_json_schema={"minLength": 1, "maxLength": MAX_FILE_NAME_CHARS})]
MimeType = Annotated[str, msgspec.Meta(extra_json_schema={"pattern": f"^{MIME_TYPE}$"})]
Rule = Annotated[str, msgspec.Meta(extra_json_schema={"maxLength": MAX_RULE_CHARS})]
Rules = Annotated[tuple[Rule, ...], msgspec.Meta(extra_json_schema={"maxItems": MAX_RULES})]

OPEN_STATES: tuple[RunState, ...] = ("queued", "running")


class Attachment(msgspec.Struct, frozen=True):
    file_name: FileName
    mime_type: MimeType
    content: Base64


# JSON has one kind of number: 20.0 is as whole as 20.
Steps = Annotated[float, msgspec.Meta(ge=1, le=1_000_000, multiple_of=1)]


class RunOptions(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How one run differs from what is configured. Part of "the same body" (P3); a turn has one set of them."""

    system: str | None = None  # instead of how the agent works by itself; its place and context files come after it
    max_steps: Steps | None = None
    max_cost: Annotated[float, msgspec.Meta(gt=0)] | None = None  # in dollars
    output_schema: dict[str, Any] | None = None  # a JSON schema: the answer is JSON that it accepts
    mode: Mode | None = None
    allow: Rules = ()
    deny: Rules = ()
    effort: Effort | None = None  # how much the model thinks first


class Submission(msgspec.Struct, frozen=True, kw_only=True):
    """A prompt as it was sent. Two with equal fields are "the same body" (P3): neither `env` nor `run_id` is in it."""

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


class Run(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The run as it is now; `seq` is the place of its acceptance in the log."""

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

    @property
    def is_open(self) -> bool:
        return self.state in OPEN_STATES


class RunStatus(Run, frozen=True, kw_only=True):
    """The run with what it used so far and, when it failed, why: the answer of REST, never an event.

    `undone`: an undo took its messages out of the conversation.
    """

    usage: Usage
    error: str | None = None
    code: str | None = None
    undone: bool = False


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
