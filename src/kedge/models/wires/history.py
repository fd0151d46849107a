"""Make a conversation valid for every provider, even if it was interrupted, resumed or started with another model.

The resulting messages contain texts, images, documents, reasoning that can be returned, calls and their results, and
nothing else. Messages before a prompt always give the same result, also when the conversation grows: the providers'
prompt caches depend on it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from typing import Literal

import msgspec

from kedge.models.values import TEXT_CALL_ID
from kedge.models.wires import hosted_search
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
from kedge.protocol.tool_input import parse_tool_input

# The smallest limit of the vendors: 5 MiB of base64. A larger image would make every later request fail.
MAX_IMAGE_BYTES = 5 * 1024 * 1024 // 4 * 3
IMAGE_TYPES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
PDF = "application/pdf"
MAX_PDF_BYTES = 10 * 1024 * 1024  # it is part of every later request, and vendors accept 20 MB in total
GO_ON = "Continue."

_SUMMARY = "The conversation so far was summarized, and earlier messages are no longer shown:\n\n"
_NO_RESULT = "The call has no result: it was cut off before it ended. What it did until then is not known."
_NO_OUTPUT = "(no output)"
_BAD_NAME = re.compile(r"[^a-zA-Z0-9_-]")
_MAX_NAME = 64
_FAILED = frozenset({"interrupted", "canceled", "error"})

IdRule = Literal["any", "anthropic", "mistral"]

# Servers of the chat wire accept all ids of their own; of foreign ones those that OpenAI accepts (40 characters).
_PATTERNS: dict[IdRule, re.Pattern[str]] = {
    "any": re.compile(r"[a-zA-Z0-9_-]{1,40}"),
    "anthropic": re.compile(r"[a-zA-Z0-9_-]{1,128}"),
    "mistral": re.compile(r"[a-zA-Z0-9]{9}"),
}


class Abilities(msgspec.Struct, frozen=True, kw_only=True):
    """What a request may contain. Only reasoning of `provider` is returned to it; None: no reasoning at all."""

    images: bool = True
    image_types: frozenset[str] = IMAGE_TYPES
    pdfs: bool = False
    tools: bool = True
    provider: str | None = None
    encrypted_reasoning: bool = True  # models without reasoning may reject it
    ids: IdRule = "any"
    trailing_reasoning: bool = False  # a message may end with reasoning; most providers reject that
    searches: str | None = None  # the wire, if the provider may search: it gets its own searches back
    user_after_results: bool = True  # a user message may follow tool results


class EncodingState:
    """State after encoding the first messages of a conversation: ids in use, and whether a message was sent."""

    def __init__(self, ids: CallIds | None = None, *, has_messages: bool = False) -> None:
        self.ids = ids or CallIds()
        self.has_messages = has_messages

    def copy(self) -> EncodingState:
        return EncodingState(self.ids.copy(), has_messages=self.has_messages)


def drop_summarized(history: Sequence[Message]) -> Sequence[Message]:
    """Return the history from the last finished summary on, which replaces everything before it."""
    marked = (i for i in reversed(range(len(history))) if history[i].summary)
    start = next((i for i in marked if is_summary(history[i])), 0)
    return history[start:] if start else history


def is_summary(message: Message) -> bool:
    finish = finish_of(message.parts) if message.summary else None
    return finish is not None and finish.reason not in _FAILED


def count_settled(history: Sequence[Message]) -> int:
    """Return the number of messages at the start that can be encoded separately and cached.

    They end before the last answer but one, if a prompt or results precede it. Nothing is inserted there, and no two
    messages of the same role meet there, which a wire would have to merge.
    """
    answers = 0
    for i in reversed(range(1, len(history))):
        if _is_answer(history[i]):
            answers += 1
            if answers >= 2 and _follows_user_content(history, i):
                return i
    return 0


def valid_history(
    history: Sequence[Message], abilities: Abilities, state: EncodingState | None = None
) -> list[Message]:
    """Return messages where results follow their calls, the first is the user's, and none is empty."""
    state = state or EncodingState()
    messages: list[Message] = []
    pending: _CallResults | None = None  # calls of the last answer, whose results are being collected

    def add(*new: Message) -> None:
        for message in new:
            if not state.has_messages and message.role != "user":
                messages.append(_replace(message, [Text(GO_ON)], role="user"))
            state.has_messages = True
            messages.append(message)

    for message in drop_summarized(history):
        if message.role == "tool":
            if pending is not None:
                pending.add(message)
            continue
        if is_summary(message):
            sent = _replace(message, [Text(_SUMMARY + _text(message.parts))], role="user")
        elif message.role == "user":
            sent = _replace(message, list(_user_parts(message.parts, abilities)))
        else:
            sent = _replace(message, _answer_parts(message, abilities) if _is_answer(message) else [])
        if not sent.parts:
            continue
        if pending is not None:
            add(*pending.results())
            pending = None
        if any(isinstance(part, ToolCall) for part in sent.parts):
            pending = _CallResults(sent, abilities, state.ids)
            sent = pending.answer
        add(sent)
    if pending is not None:
        add(*pending.results())
    return messages


class _CallResults:
    """Collects the results of one answer's calls."""

    def __init__(self, answer: Message, abilities: Abilities, ids: CallIds) -> None:
        self._abilities = abilities
        self._calls: dict[str, ToolCall] = {}  # by original id
        self._results: dict[str, tuple[Message, list[Part]]] = {}
        is_own = _provider_of(answer) == abilities.provider
        parts: list[Part] = []
        for part in answer.parts:
            if not isinstance(part, ToolCall):
                parts.append(part)
            elif part.id not in self._calls:
                name = _BAD_NAME.sub("_", part.name)[:_MAX_NAME] or "unknown"
                call = ToolCall(ids.translate(part.id, abilities.ids, is_own=is_own), name, _encode_input(part), True)
                self._calls[part.id] = call
                parts.append(call)
        if not abilities.tools:  # calls become text
            parts = [
                Text(f"[I called {part.name} with {part.input}]") if isinstance(part, ToolCall) else part
                for part in parts
            ]
        self.answer = _replace(answer, parts)

    def add(self, message: Message) -> None:
        current: list[Part] | None = None
        for part in message.parts:
            match part:
                case ToolResult(call_id) if call_id in self._calls and call_id not in self._results:
                    current = [part]
                    self._results[call_id] = (message, current)
                case ToolResult():
                    current = None
                case Image() if current is not None:
                    current.append(part)
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
        converted = list(_user_parts(parts[1:], self._abilities))
        notes = [part.text for part in converted if isinstance(part, Text)]
        images = [part for part in converted if isinstance(part, Image)]
        content = "\n\n".join([result.content if result.content.strip() else _NO_OUTPUT, *notes])
        if not self._abilities.tools:
            text = f"Result of {call.name}{' (an error)' if result.is_error else ''}:\n\n{content}"
            return _replace(source, [Text(text), *images], role="user")
        sent = ToolResult(call.id, call.name, content, result.is_error)
        return _replace(source, [sent, *images], role="tool")


def _is_answer(message: Message) -> bool:
    """True for an assistant message that is sent: not an interrupted or empty one."""
    if message.role != "assistant" or message.summary:
        return False
    finish = finish_of(message.parts)
    if finish is not None and finish.reason == "interrupted":
        return False
    return any(
        isinstance(part, ToolCall)
        or (isinstance(part, Text) and bool(part.text.strip()))
        or (isinstance(part, Reasoning) and hosted_search.is_marked(part.signature))
        for part in message.parts
    )


def _follows_user_content(history: Sequence[Message], index: int) -> bool:
    """True if a prompt or the results of calls are sent just before the answer at `index`."""
    before = next((i for i in reversed(range(index)) if history[i].role != "tool"), None)
    if before is None:
        return False
    message = history[before]
    if message.role == "user":
        return any(_user_parts(message.parts, Abilities()))
    if is_summary(message):
        return True
    return _is_answer(message) and any(isinstance(part, ToolCall) for part in message.parts)


def _answer_parts(message: Message, abilities: Abilities) -> list[Part]:
    is_own = _provider_of(message) == abilities.provider
    is_text_call = any(isinstance(part, ToolCall) and part.id.startswith(TEXT_CALL_ID) for part in message.parts)
    parts: list[Part] = []
    for part in message.parts:
        match part:
            case Text(text) if text.strip() and not is_text_call:
                parts.append(part)
            case ToolCall():
                parts.append(part)
            case Reasoning(text, signature) if hosted_search.is_marked(signature):
                if is_own and hosted_search.wire_of(signature) == abilities.searches:
                    parts.append(part)
                elif text.strip():
                    parts.append(Text(text))
            case Reasoning(_, signature) if is_own and signature:
                parts.append(part)
            case _:
                pass
    while parts and _is_reasoning(parts[-1]) and not abilities.trailing_reasoning:  # the answer was cut off
        del parts[-1]
    return parts


def _is_reasoning(part: Part) -> bool:
    return isinstance(part, Reasoning) and not hosted_search.is_marked(part.signature)


def _user_parts(parts: Sequence[Part], abilities: Abilities) -> Iterator[Text | Image | File]:
    for part in parts:
        match part:
            case Text(text) if text.strip():
                yield part
            case Image(mime_type, data):
                no_images = "this model cannot see images"
                yield _check_image(part, abilities) if abilities.images else Text(_note(mime_type, data, no_images))
            case File(_, mime_type, data) if abilities.pdfs and mime_type == PDF and 0 < len(data) <= MAX_PDF_BYTES:
                yield part
            case File():
                yield Text(_file_text(part))
            case ShellCommand(command, output, exit_code):
                ended = "was stopped" if exit_code is None else f"ended with exit code {exit_code}"
                yield Text(f"I ran this command, which {ended}:\n\n$ {command}\n{output}")
            case _:
                pass


def _check_image(image: Image, abilities: Abilities) -> Image | Text:
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


def _encode_input(call: ToolCall) -> str:
    """Return the call's input as a JSON object, which providers require; other input is wrapped in one."""
    try:
        if isinstance(msgspec.json.decode(call.input or "{}"), dict):
            return call.input or "{}"
    except (msgspec.DecodeError, RecursionError):
        pass
    if not call.finished:
        return "{}"
    given = parse_tool_input(call.input)
    return msgspec.json.encode({"not_an_object": call.input} if given is None else given).decode()


def _text(parts: Sequence[Part]) -> str:
    return "".join(part.text for part in parts if isinstance(part, Text)).strip() or "(nothing)"


def _provider_of(message: Message) -> str | None:
    return message.model.partition("/")[0] if message.model else None


def _replace(message: Message, parts: Sequence[Part], role: str | None = None) -> Message:
    return msgspec.structs.replace(message, parts=list(parts), role=role or message.role)


class CallIds:
    """Ids used so far in a conversation."""

    def __init__(self, used: frozenset[str] | set[str] = frozenset()) -> None:
        self._used = set(used)

    def copy(self) -> CallIds:
        return CallIds(self._used)

    def translate(self, call_id: str, rule: IdRule, *, is_own: bool) -> str:
        """Return the id to send for a call. Depends only on the call and those before it."""
        is_accepted = bool(call_id) if is_own and rule == "any" else _PATTERNS[rule].fullmatch(call_id) is not None
        new_id = call_id if is_accepted else make_id(call_id, rule)
        number = 0
        while new_id in self._used:
            number += 1
            new_id = make_id(f"{call_id}\n{number}", rule)
        self._used.add(new_id)
        return new_id


class StepIds:
    """Ids of the calls of one step.

    Results refer to calls by id, but some servers give no ids, or the same ones in each step. Then an id is made, which
    is the same in each attempt of the step.
    """

    def __init__(self, history: Sequence[Message]) -> None:
        self._history = history
        self._used: set[str] | None = None

    def make_unique(self, call_id: str, index: int) -> str:
        if self._used is None:  # computed only for steps with calls
            parts = (part for message in self._history for part in message.parts)
            self._used = {part.id for part in parts if isinstance(part, ToolCall)}
        if not call_id or call_id in self._used:
            last = self._history[-1].id if self._history else ""
            call_id = make_id(f"{last}\n{call_id}\n{index}")
        self._used.add(call_id)
        return call_id


def make_id(seed: str, rule: IdRule = "any") -> str:
    """Return an id that all providers with that rule accept."""
    digest = hashlib.sha256(seed.encode("utf-8", "surrogatepass")).hexdigest()
    return digest[:9] if rule == "mistral" else f"call_{digest[:24]}"
