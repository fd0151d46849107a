"""How much a model has to read of a conversation, in characters, about: where nobody has counted (yet)."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from kedge.models.values import StepRequest
from kedge.models.wires.history import PDF
from kedge.protocol.messages import File, Image, Message, Part, Reasoning, ShellCommand, Text, ToolCall, ToolResult

IMAGE_CHARS = 4_000  # a screenshot, scaled down as the vendors do: a thousand tokens
PDF_BYTES_PER_CHAR = 4  # fonts and pictures: a page of 30 KB is read as some 2,000 tokens
NAMED_CHARS = 100  # of a file that is only named


def size_of(history: Sequence[Message]) -> int:
    return sum(size_of_part(part) for message in history for part in message.parts)


def size_of_request(request: StepRequest) -> int:
    tools = len(msgspec.json.encode(request.tools)) if request.tools else 0
    return len(request.system) + tools + size_of(request.history)


def size_of_part(part: Part) -> int:
    match part:
        case Text() | Reasoning():
            return len(part.text)
        case ToolCall():
            return len(part.input)
        case ToolResult():
            return len(part.content)
        case ShellCommand():
            return len(part.command) + len(part.output)
        case Image():
            return IMAGE_CHARS
        case File(_, mime_type, data) if mime_type.startswith("text/"):
            return len(data)
        case File(_, mime_type, data) if mime_type == PDF:
            return len(data) // PDF_BYTES_PER_CHAR
        case File():
            return NAMED_CHARS
        case _:
            return 0
