"""What a chat is made of on the screen, from top to bottom. A block with the same key and revision looks the same."""

from __future__ import annotations

from typing import Literal

import msgspec

from kedge.protocol.messages import FinishReason, ToolResult
from kedge.protocol.runs import Usage

CallState = Literal["writing", "asking", "waiting", "running", "done", "failed", "interrupted"]


class Block(msgspec.Struct, kw_only=True):
    key: str  # the same for the same thing, as long as it is there
    revision: int = 0  # another whenever it looks different
    message_id: str | None = None


class Prompt(Block, kw_only=True):
    """What a person sent."""

    text: str
    attachments: tuple[str, ...] = ()  # names
    is_shell: bool = False


class Words(Block, kw_only=True):
    """Markdown that the model said; `is_open` while more may come."""

    text: str
    is_open: bool = False
    is_interrupted: bool = False  # of an attempt that failed: not the answer


class Thoughts(Block, kw_only=True):
    text: str
    is_open: bool = False
    is_redacted: bool = False


class Call(Block, kw_only=True):
    """A tool call with what came of it."""

    call_id: str
    name: str
    input: str  # JSON, perhaps not whole yet
    state: CallState
    output: str = ""  # while it runs, what it printed so far; then the result's text
    result: ToolResult | None = None
    images: int = 0
    child: tuple[Block, ...] = ()  # of a sub-agent: its own calls and words
    child_session_id: str | None = None


class Shell(Block, kw_only=True):
    """A command that a person ran with `!`."""

    command: str
    output: str
    exit_code: int | None
    is_open: bool = False


class Note(Block, kw_only=True):
    """A line of what happened beside the words: a retry, a summary, a cancel, an error."""

    kind: Literal["info", "warning", "error", "cancelled", "summary"]
    text: str
    details: str = ""


class End(Block, kw_only=True):
    """Below the last words of a run: what it took."""

    reason: FinishReason | None
    model: str | None
    usage: Usage
