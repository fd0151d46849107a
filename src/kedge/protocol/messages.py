"""Messages and their parts. Parts only grow, and a finished one never changes (P12)."""

from __future__ import annotations

from typing import Any, Generic, Literal, TypeVar

import msgspec

from kedge.protocol.runs import Usage

Role = Literal["user", "assistant", "tool"]
FinishReason = Literal[
    "end_turn", "tool_use", "max_tokens", "content_filter", "canceled", "error", "interrupted", "unknown"
]
DeltaKind = Literal["text", "reasoning", "tool_input", "tool_output"]
INTERRUPTED = "interrupted"  # in the metadata of the result of a call that was running when the server stopped
# `metadata.refused` of the result of a call that was refused without asking the user.
RefusalReason = Literal["rule", "mode", "hook", "unattended", "no_sandbox"]


class Text(msgspec.Struct, frozen=True, tag="text"):
    text: str


class Reasoning(msgspec.Struct, frozen=True, tag="reasoning", omit_defaults=True):
    """`signature` is sent back verbatim to its model; a redacted part has nothing else."""

    text: str
    signature: str | None = None
    redacted: bool = False


class ToolCall(msgspec.Struct, frozen=True, tag="tool_call"):
    id: str
    name: str
    input: str
    finished: bool


class ToolResult(msgspec.Struct, frozen=True, tag="tool_result", omit_defaults=True):
    tool_call_id: str
    name: str
    content: str
    is_error: bool
    metadata: dict[str, Any] | None = None


class Image(msgspec.Struct, frozen=True, tag="image", omit_defaults=True):
    mime_type: str
    data: bytes
    name: str = ""  # of the file that the user attached


class File(msgspec.Struct, frozen=True, tag="file"):
    name: str
    mime_type: str
    data: bytes


class ShellCommand(msgspec.Struct, frozen=True, tag="shell_command"):
    """A command of the user; without an exit code it is running or was stopped."""

    command: str
    output: str
    exit_code: int | None


class Finish(msgspec.Struct, frozen=True, tag="finish", omit_defaults=True):
    reason: FinishReason
    message: str | None = None
    details: str | None = None
    usage: Usage | None = None  # of this step


Part = Text | Reasoning | ToolCall | ToolResult | Image | File | ShellCommand | Finish

PartT = TypeVar("PartT")


class MessageOf(msgspec.Struct, Generic[PartT], frozen=True, kw_only=True, omit_defaults=True):
    """A message whose parts are structs, or already encoded bytes (the store encodes each part once)."""

    id: str
    session_id: str
    run_id: str
    role: Role
    parts: list[PartT]
    created_at: float
    model: str | None = None
    summary: bool = False


Message = MessageOf[Part]
RawMessage = MessageOf[msgspec.Raw]


class Delta(msgspec.Struct, frozen=True):
    """The payload of `message_delta`: a piece of streamed text and its position; `offset` counts code points."""

    message_id: str
    session_id: str
    run_id: str
    part: int
    kind: DeltaKind
    offset: int
    text: str


def text_of(parts: list[Part]) -> str:
    return "".join([part.text for part in parts if isinstance(part, Text)])


def answer_of(parts: list[Part]) -> str:
    """The text for `run_complete`: that of the last message, or the output of the user's command."""
    commands = [part for part in parts if isinstance(part, ShellCommand)]
    return commands[0].output if commands else text_of(parts)


def finish_of(parts: list[Part]) -> Finish | None:
    last = parts[-1] if parts else None
    return last if isinstance(last, Finish) else None


def text_in(part: Part) -> str:
    """The text of a part that can be streamed; empty for any other."""
    match part:
        case Text() | Reasoning():
            return part.text
        case ToolCall():
            return part.input
        case ToolResult():
            return part.content
        case ShellCommand():
            return part.output
        case _:
            return ""


def with_text(head: Part, text: str) -> Part:
    """A streamed part with its text; `head` is the part without it."""
    match head:
        case Text() | Reasoning():
            return msgspec.structs.replace(head, text=text)
        case ToolCall():
            return msgspec.structs.replace(head, input=text)
        case ToolResult():
            return msgspec.structs.replace(head, content=text)
        case ShellCommand():
            return msgspec.structs.replace(head, output=text)
        case _ if not text:
            return head  # not streamed
        case _:
            raise AssertionError(f"a {type(head).__name__} is not streamed")


def replace_surrogates(text: str) -> str:
    """Replace surrogate pairs by characters, and each lone half by U+FFFD (P12)."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
