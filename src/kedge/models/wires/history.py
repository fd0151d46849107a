"""A conversation as every provider accepts it, whatever happened to it: cut short, resumed, begun with another model.

The messages that come out hold texts, images, documents, reasoning that can go back, calls and their results, and
nothing else. What comes out for the messages before a prompt never changes when more are said, so that the providers'
caches hold.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import msgspec

from kedge.models.wires.call_ids import CallIds, IdRule
from kedge.protocol.messages import (
    File,
    Image,
    Message,
    Part,
    Reasoning,
    ShellCommand,
    Text,
    ToolCall,
    ToolResult,
    finish_of,
)

# The smallest bound of the vendors: 5 MiB of base64. One image above it would spoil every later request.
MAX_IMAGE_BYTES = 5 * 1024 * 1024 // 4 * 3
IMAGE_TYPES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
PDF = "application/pdf"
MAX_PDF_BYTES = 10 * 1024 * 1024  # it is sent with every later request, and vendors take 20 MB in all
GO_ON = "Continue."

_SUMMARY = "The conversation so far was summarised, and what came before is no longer shown:\n\n"
_NO_RESULT = "The call has no result: it was cut off before it ended. What it did until then is not known."
_NO_OUTPUT = "(no output)"
_BAD_NAME = re.compile(r"[^a-zA-Z0-9_-]")
_MAX_NAME = 64
_FAILED = frozenset({"interrupted", "canceled", "error"})


class Abilities(msgspec.Struct, frozen=True, kw_only=True):
    """What a model can be told. `provider` is who can read the reasoning it gave; None: nobody."""

    images: bool = True
    image_types: frozenset[str] = IMAGE_TYPES
    pdfs: bool = False
    tools: bool = True
    provider: str | None = None
    sealed_thoughts: bool = True  # those that only the provider can read; models that do not reason may refuse them
    ids: IdRule = "any"
    last_thoughts: bool = False  # may a message end with them? Most refuse it
    user_after_results: bool = True  # a prompt may follow the results of calls


class Past:
    """What the messages before those at hand have settled."""

    def __init__(self, ids: CallIds | None = None, *, is_begun: bool = False) -> None:
        self.ids = ids or CallIds()
        self.is_begun = is_begun

    def copy(self) -> Past:
        return Past(self.ids.copy(), is_begun=self.is_begun)


def since_summary(history: Sequence[Message]) -> Sequence[Message]:
    """From the last finished summary on: it stands for all before it."""
    marked = (i for i in reversed(range(len(history))) if history[i].summary)
    start = next((i for i in marked if is_summary(history[i])), 0)
    return history[start:] if start else history


def is_summary(message: Message) -> bool:
    finish = finish_of(message.parts) if message.summary else None
    return finish is not None and finish.reason not in _FAILED


def settled(history: Sequence[Message]) -> int:
    """How many messages of the beginning can be encoded by themselves, once and for all.

    They end before the last answer but one, where a prompt or results came before it: neither is anything added there,
    nor do messages of one role meet there, which a wire would have to join.
    """
    answers = 0
    for i in reversed(range(1, len(history))):
        if _is_answer(history[i]):
            answers += 1
            if answers >= 2 and _is_closed(history, i):
                return i
    return 0


def valid_history(history: Sequence[Message], abilities: Abilities, past: Past | None = None) -> list[Message]:
    """Calls have results right after them, in their order; the first message is a user's; nothing is empty."""
    past = past or Past()
    messages: list[Message] = []
    rounds: _Round | None = None  # the last answer's calls, whose results are being collected

    def add(*new: Message) -> None:
        for message in new:
            if not past.is_begun and message.role != "user":
                messages.append(_replaced(message, [Text(GO_ON)], role="user"))
            past.is_begun = True
            messages.append(message)

    for message in since_summary(history):
        if message.role == "tool":
            if rounds is not None:
                rounds.take(message)
            continue
        if is_summary(message):
            made = _replaced(message, [Text(_SUMMARY + _text(message.parts))], role="user")
        elif message.role == "user":
            made = _replaced(message, list(_user_parts(message.parts, abilities)))
        else:
            made = _replaced(message, _answer_parts(message, abilities) if _is_answer(message) else [])
        if not made.parts:
            continue
        if rounds is not None:
            add(*rounds.results())
            rounds = None
        if any(isinstance(part, ToolCall) for part in made.parts):
            rounds = _Round(made, abilities, past.ids)
            made = rounds.answer
        add(made)
    if rounds is not None:
        add(*rounds.results())
    return messages


class _Round:
    """One answer's calls and what is known of their results."""

    def __init__(self, answer: Message, abilities: Abilities, ids: CallIds) -> None:
        self._abilities = abilities
        self._calls: dict[str, ToolCall] = {}  # by the id that the results name
        self._results: dict[str, tuple[Message, list[Part]]] = {}
        is_own = _provider(answer) == abilities.provider
        parts: list[Part] = []
        for part in answer.parts:
            if not isinstance(part, ToolCall):
                parts.append(part)
            elif part.id not in self._calls:
                name = _BAD_NAME.sub("_", part.name)[:_MAX_NAME] or "unknown"
                call = ToolCall(ids.sent(part.id, abilities.ids, is_own=is_own), name, _json_object(part), True)
                self._calls[part.id] = call
                parts.append(call)
        if not abilities.tools:
            parts = [_told(part) if isinstance(part, ToolCall) else part for part in parts]
        self.answer = _replaced(answer, parts)

    def take(self, message: Message) -> None:
        known: list[Part] | None = None
        for part in message.parts:
            match part:
                case ToolResult(call_id) if call_id in self._calls and call_id not in self._results:
                    known = [part]
                    self._results[call_id] = (message, known)
                case ToolResult():
                    known = None
                case Image() if known is not None:
                    known.append(part)
                case _:
                    pass

    def results(self) -> Iterator[Message]:
        for call_id, call in self._calls.items():
            lost: list[Part] = [ToolResult(call_id, call.name, _NO_RESULT, True)]
            source, parts = self._results.get(call_id, (self.answer, lost))
            yield self._result(source, call, parts)

    def _result(self, source: Message, call: ToolCall, parts: list[Part]) -> Message:
        result = parts[0]
        assert isinstance(result, ToolResult)
        shown = list(_user_parts(parts[1:], self._abilities))
        notes = [part.text for part in shown if isinstance(part, Text)]
        images = [part for part in shown if isinstance(part, Image)]
        content = "\n\n".join([result.content if result.content.strip() else _NO_OUTPUT, *notes])
        if not self._abilities.tools:
            said = f"Result of {call.name}{' (an error)' if result.is_error else ''}:\n\n{content}"
            return _replaced(source, [Text(said), *images], role="user")
        sent = ToolResult(call.id, call.name, content, result.is_error)
        return _replaced(source, [sent, *images], role="tool")


def _is_answer(message: Message) -> bool:
    """Is it an assistant's message that is sent? One that was interrupted is not, nor one that says nothing."""
    if message.role != "assistant" or message.summary:
        return False
    finish = finish_of(message.parts)
    if finish is not None and finish.reason == "interrupted":
        return False
    return any(
        isinstance(part, ToolCall) or (isinstance(part, Text) and bool(part.text.strip())) for part in message.parts
    )


def _is_closed(history: Sequence[Message], at: int) -> bool:
    """Is what is sent just before that answer a user's: a prompt, or the results of an answer's calls?"""
    before = next((i for i in reversed(range(at)) if history[i].role != "tool"), None)
    if before is None:
        return False
    message = history[before]
    if message.role == "user":
        return any(_user_parts(message.parts, Abilities()))
    if is_summary(message):
        return True
    return _is_answer(message) and any(isinstance(part, ToolCall) for part in message.parts)


def _answer_parts(message: Message, abilities: Abilities) -> list[Part]:
    is_own = _provider(message) == abilities.provider
    parts: list[Part] = []
    for part in message.parts:
        match part:
            case Text(text) if text.strip():
                parts.append(part)
            case ToolCall():
                parts.append(part)
            case Reasoning(_, signature) if is_own and signature:
                parts.append(part)
            case _:
                pass
    while isinstance(parts[-1], Reasoning) and not abilities.last_thoughts:  # of an answer that was cut off
        del parts[-1]
    return parts


def _user_parts(parts: Sequence[Part], abilities: Abilities) -> Iterator[Text | Image | File]:
    for part in parts:
        match part:
            case Text(text) if text.strip():
                yield part
            case Image(mime_type, data):
                is_seen = abilities.images
                yield _seen(part, abilities) if is_seen else Text(_note(mime_type, data, "this model sees no images"))
            case File(_, mime_type, data) if abilities.pdfs and mime_type == PDF and 0 < len(data) <= MAX_PDF_BYTES:
                yield part
            case File():
                yield Text(_file_text(part))
            case ShellCommand(command, output, exit_code):
                ended = "was stopped" if exit_code is None else f"ended with exit code {exit_code}"
                yield Text(f"I ran this command, which {ended}:\n\n$ {command}\n{output}")
            case _:
                pass


def _seen(image: Image, abilities: Abilities) -> Image | Text:
    if image.mime_type not in abilities.image_types:
        who = "this model does not read" if image.mime_type in IMAGE_TYPES else "no model reads"
        return Text(_note(image.mime_type, image.data, f"{who} this kind of image"))
    if len(image.data) > MAX_IMAGE_BYTES:
        return Text(_note(image.mime_type, image.data, "it is too large to be shown"))
    return image if image.data else Text(_note(image.mime_type, image.data, "it is empty"))


def _note(mime_type: str, data: bytes, why: str) -> str:
    return f"[an image was here ({mime_type}, {len(data)} bytes): {why}]"


def _file_text(file: File) -> str:
    if file.mime_type.startswith("text/"):
        return f"Attached file {file.name}:\n\n{file.data.decode('utf-8', 'replace')}"
    return f"Attached file {file.name} ({file.mime_type}, {len(file.data)} bytes; its content cannot be shown)"


def _told(call: ToolCall) -> Text:
    """For a model that has no tools: what was done, in words."""
    return Text(f"[I called {call.name} with {call.input}]")


def _json_object(call: ToolCall) -> str:
    """The call's input, which providers take only as an object, or one that holds what was said instead."""
    try:
        if isinstance(msgspec.json.decode(call.input or "{}"), dict):
            return call.input or "{}"
    except (msgspec.DecodeError, RecursionError):
        pass
    return msgspec.json.encode({"not_an_object": call.input}).decode() if call.finished else "{}"


def _text(parts: Sequence[Part]) -> str:
    return "".join(part.text for part in parts if isinstance(part, Text)).strip() or "(nothing)"


def _provider(message: Message) -> str | None:
    return message.model.partition("/")[0] if message.model else None


def _replaced(message: Message, parts: Sequence[Part], role: str | None = None) -> Message:
    return msgspec.structs.replace(message, parts=list(parts), role=role or message.role)
