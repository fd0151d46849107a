"""A conversation made small enough to be read once more: what tools said goes first, then the oldest of the rest.

Only for summarising. What comes out is as valid for every provider as what went in.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from kedge.models.values import StepRequest
from kedge.models.wires.history import PDF
from kedge.protocol.messages import File, Image, Message, Part, Reasoning, ShellCommand, Text, ToolCall, ToolResult

IMAGE_CHARS = 4_000  # a screenshot, scaled down as the vendors do: a thousand tokens
PDF_BYTES_PER_CHAR = 4  # fonts and pictures: a page of 30 KB is read as some 2,000 tokens
NAMED_CHARS = 100  # of a file that is only named
LEAST_CHARS = 200  # of a result: less says nothing
MARK_CHARS = 50  # of what stands where something was cut


def shrunk(history: Sequence[Message], max_chars: int) -> list[Message]:
    """The same conversation in at most about `max_chars`, its end and an earlier summary kept longest."""
    if size_of(history) <= max_chars:
        return list(history)
    plain = [_without_media(message) for message in history]
    outputs = sorted(len(part.content) for message in plain for part in message.parts if isinstance(part, ToolResult))
    room = max_chars - (size_of(plain) - sum(outputs))
    cut = [_cut_results(message, _cap(outputs, room)) for message in plain]
    if size_of(cut) <= max_chars:
        return cut
    most = max(LEAST_CHARS, max_chars // 4)  # no single message takes all of it
    return _newest([_cut_all(message, most) for message in cut], max_chars)


def cut_text(text: str, most: int) -> str:
    """Its beginning and its end, and a mark between them: `most` characters with it."""
    if len(text) <= most:
        return text
    kept = max(most - MARK_CHARS, 0)
    end = kept // 3
    return f"{text[: kept - end]}\n[… {len(text) - kept} characters left out …]\n{text[len(text) - end :]}"


def _cap(sizes: Sequence[int], room: int) -> int:
    """How much each may keep, so that together they fit: the longest are cut, the others are whole."""
    for index, size in enumerate(sizes):
        share = room // (len(sizes) - index)
        if size > share:
            return max(share, LEAST_CHARS)
        room -= size
    return max(sizes, default=0)


def _newest(history: list[Message], max_chars: int) -> list[Message]:
    """The end of it, after an earlier summary if there is one."""
    first = history[:1] if history and history[0].summary else []
    room = max_chars - size_of(first)
    kept: list[Message] = []
    for message in reversed(history[len(first) :]):
        room -= size_of([message])
        if room < 0 and kept:
            break
        kept.append(message)
    return [*first, *reversed(kept)]


def _without_media(message: Message) -> Message:
    parts: list[Part] = [
        Text(f"[an image was here: {part.mime_type}]") if isinstance(part, Image) else part
        for part in message.parts
        if message.role == "user" or not isinstance(part, Image)
    ]
    return msgspec.structs.replace(message, parts=parts)


def _cut_results(message: Message, most: int) -> Message:
    parts: list[Part] = [
        msgspec.structs.replace(part, content=cut_text(part.content, most)) if isinstance(part, ToolResult) else part
        for part in message.parts
    ]
    return msgspec.structs.replace(message, parts=parts)


def _cut_all(message: Message, most: int) -> Message:
    return msgspec.structs.replace(message, parts=[_cut(part, most) for part in message.parts])


def _cut(part: Part, most: int) -> Part:
    match part:
        case Text():
            return Text(cut_text(part.text, most))
        case ShellCommand() if len(part.output) > most:
            return msgspec.structs.replace(part, output=cut_text(part.output, most))
        case File() if size_of_part(part) > most:
            return Text(f"[the file {part.name} was attached here: {len(part.data)} bytes]")
        case ToolCall() if len(part.input) > most:
            return msgspec.structs.replace(part, input=msgspec.json.encode({"cut": part.input[:most]}).decode())
        case Reasoning() if len(part.text) > most:
            return Reasoning("")  # without its signature it goes to nobody
        case _:
            return part


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
