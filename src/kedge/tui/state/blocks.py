"""The blocks that a chat consists of, from top to bottom. Two blocks with the same key and revision look the same."""

from __future__ import annotations

from typing import Literal

import msgspec

from kedge.protocol.messages import FinishReason, ToolResult
from kedge.protocol.runs import Usage

CallState = Literal["writing", "asking", "waiting", "running", "done", "failed", "interrupted"]


class Block(msgspec.Struct, kw_only=True):
    key: str  # stays the same for as long as the block exists
    revision: int = 0  # another number whenever the block looks different


class PromptBlock(Block, kw_only=True):
    text: str
    attachments: tuple[str, ...] = ()  # names
    is_shell: bool = False


class TextBlock(Block, kw_only=True):
    """Markdown text of the model; `is_open` while more may come."""

    text: str
    is_open: bool = False
    is_interrupted: bool = False  # of an attempt that failed: not the answer


class ReasoningBlock(Block, kw_only=True):
    text: str
    is_open: bool = False
    is_redacted: bool = False


class CallBlock(Block, kw_only=True):
    """A tool call and its result."""

    name: str
    input: str  # JSON, incomplete while the model writes it
    state: CallState
    output: str = ""  # the output so far while it runs, then the text of the result
    result: ToolResult | None = None
    images: int = 0
    child: tuple[Block, ...] = ()  # the blocks of a sub-agent
    child_session_id: str | None = None


class ShellBlock(Block, kw_only=True):
    """A command that the user ran with `!`."""

    command: str
    output: str
    exit_code: int | None
    is_open: bool = False


class NoteBlock(Block, kw_only=True):
    """One line about the run itself: a retry, a summary, a cancellation, an error."""

    kind: Literal["info", "warning", "error", "cancelled", "summary"]
    text: str
    details: str = ""


class EndBlock(Block, kw_only=True):
    """The last line of a run: its model, duration, tokens and cost."""

    reason: FinishReason | None
    model: str | None
    usage: Usage
    took_s: float | None = None  # None: unknown
