"""The size of a conversation in characters: estimated, and reduced for a summary.

The reduced conversation is valid for every provider if the original was.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from kedge.models.values import StepRequest
from kedge.models.wires.history import PDF
from kedge.protocol.messages import File, Image, Message, Part, Reasoning, ShellCommand, Text, ToolCall, ToolResult

IMAGE_CHARS = 4_000  # a screenshot, scaled down as the vendors do: a thousand tokens
PDF_BYTES_PER_CHAR = 4  # with fonts and pictures: a page of 30 KB is about 2,000 tokens
NAMED_CHARS = 100  # for a file of which only the name is sent
MIN_KEPT_CHARS = 200  # of a result: less is useless
MARK_CHARS = 50  # room for the mark where text was cut


def count_chars(history: Sequence[Message]) -> int:
    return sum(count_part_chars(part) for message in history for part in message.parts)


def count_request_chars(request: StepRequest) -> int:
    tools = len(msgspec.json.encode(request.tools)) if request.tools else 0
    return len(request.system) + tools + count_chars(request.history)


def count_part_chars(part: Part) -> int:
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


def shrink_history(history: Sequence[Message], max_chars: int) -> list[Message]:
    """Return the conversation cut to about `max_chars`: tool results first, then the oldest messages.

    An earlier summary and the end of the conversation are kept longest.
    """
    if count_chars(history) <= max_chars:
        return list(history)
    plain = [_remove_media(message) for message in history]
    outputs = sorted(len(part.content) for message in plain for part in message.parts if isinstance(part, ToolResult))
    room = max_chars - (count_chars(plain) - sum(outputs))
    cut = [_cut_results(message, _max_kept_chars(outputs, room)) for message in plain]
    if count_chars(cut) <= max_chars:
        return cut
    max_part_chars = max(MIN_KEPT_CHARS, max_chars // 4)  # so that no single message takes all the room
    return _keep_newest([_cut_all(message, max_part_chars) for message in cut], max_chars)


def cut_text(text: str, max_chars: int) -> str:
    """Return the beginning and the end of the text with a mark between them, together `max_chars` long."""
    if len(text) <= max_chars:
        return text
    kept = max(max_chars - MARK_CHARS, 0)
    end = kept // 3
    return f"{text[: kept - end]}\n[… {len(text) - kept} characters left out …]\n{text[len(text) - end :]}"


def _max_kept_chars(sizes: Sequence[int], room: int) -> int:
    """Return the length to cut texts to so that together they fit; only the longest are cut."""
    for index, size in enumerate(sizes):
        share = room // (len(sizes) - index)
        if size > share:
            return max(share, MIN_KEPT_CHARS)
        room -= size
    return max(sizes, default=0)


def _keep_newest(history: list[Message], max_chars: int) -> list[Message]:
    """Return the newest messages that fit, after an earlier summary if there is one."""
    first = history[:1] if history and history[0].summary else []
    room = max_chars - count_chars(first)
    kept: list[Message] = []
    for message in reversed(history[len(first) :]):
        room -= count_chars([message])
        if room < 0 and kept:
            break
        kept.append(message)
    return [*first, *reversed(kept)]


def _remove_media(message: Message) -> Message:
    parts: list[Part] = [
        Text(f"[an image was here: {part.mime_type}]") if isinstance(part, Image) else part
        for part in message.parts
        if message.role == "user" or not isinstance(part, Image)
    ]
    return msgspec.structs.replace(message, parts=parts)


def _cut_results(message: Message, max_chars: int) -> Message:
    parts: list[Part] = [
        msgspec.structs.replace(part, content=cut_text(part.content, max_chars))
        if isinstance(part, ToolResult)
        else part
        for part in message.parts
    ]
    return msgspec.structs.replace(message, parts=parts)


def _cut_all(message: Message, max_chars: int) -> Message:
    return msgspec.structs.replace(message, parts=[_cut(part, max_chars) for part in message.parts])


def _cut(part: Part, max_chars: int) -> Part:
    match part:
        case Text():
            return Text(cut_text(part.text, max_chars))
        case ShellCommand() if len(part.output) > max_chars:
            return msgspec.structs.replace(part, output=cut_text(part.output, max_chars))
        case File() if count_part_chars(part) > max_chars:
            return Text(f"[the file {part.name} was attached here: {len(part.data)} bytes]")
        case ToolCall() if len(part.input) > max_chars:
            return msgspec.structs.replace(part, input=msgspec.json.encode({"cut": part.input[:max_chars]}).decode())
        case Reasoning() if len(part.text) > max_chars:
            return Reasoning("")  # without its signature no provider accepts it
        case _:
            return part
