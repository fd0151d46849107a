"""Requests and streams of OpenAI's Responses API. Unknown events and items are ignored.

Nothing is stored at the provider (`store: false`): items that it needs again are sent with each request, unchanged.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, cast

import msgspec

from kedge.models import values
from kedge.models.errors import ModelError
from kedge.models.values import Delta, Endpoint, HttpRequest, StepRequest, ToolSpec
from kedge.models.wires import hosted_search, requests
from kedge.models.wires.decoding import AnswerStream, as_object, convert, count, make_json_decoder
from kedge.models.wires.history import Abilities, EncodingState, valid_history
from kedge.models.wires.provider_errors import error_from_event
from kedge.models.wires.requests import EncodedCache
from kedge.protocol.messages import File, FinishReason, Image, Message, Part, Reasoning, Text, ToolCall, ToolResult

LEAST_OUTPUT = 16  # tokens; a smaller limit is rejected

_MARKED = "responses:"  # prefix of signatures of this wire


class Mark(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Content of a reasoning part's signature: data of the provider's item that must be returned.

    An item with several summaries becomes several reasoning parts with the same id; the last one has the encrypted
    content. `phase` belongs to the next text, whose part has no field for it.
    """

    id: str = ""
    encrypted_content: str = ""
    is_raw: bool = False  # the text is the reasoning itself, not a summary
    phase: str = ""

    @property
    def signature(self) -> str:
        return _MARKED + msgspec.json.encode(self).decode()


def read_mark(signature: str | None) -> Mark | None:
    if signature is None or not is_marked(signature):
        return None
    try:
        return msgspec.json.decode(signature.removeprefix(_MARKED), type=Mark)
    except msgspec.MsgspecError:
        return None


def is_marked(signature: str) -> bool:
    """True for a signature of this wire."""
    return signature.startswith(_MARKED)


def prepare_request(endpoint: Endpoint, request: StepRequest, cache: EncodedCache | None = None) -> HttpRequest:
    able = requests.find_abilities(endpoint, request, "any")
    able = msgspec.structs.replace(able, pdfs=able.images, encrypted_reasoning=endpoint.info.reasoning)
    limit = request.max_output_tokens
    fields: dict[str, Any] = {
        "model": endpoint.model,
        "instructions": request.system or None,
        "tools": _encode_tools(request) if able.tools else None,
        "input": requests.encode_messages(cache, encode, request, able),
        "max_output_tokens": None if limit is None else max(limit, LEAST_OUTPUT),
        "reasoning": _choose_reasoning(endpoint, request),
        # Models without reasoning reject it.
        "include": _list_included(endpoint, request) or None,
        # Routes the steps of a session to its prompt cache.
        "prompt_cache_key": request.history[0].session_id if request.history else None,
        "store": False,
        "stream": True,
    }
    headers = requests.make_key_headers(endpoint)
    return requests.make_stream_request(endpoint, f"{endpoint.base_url}/responses", headers, fields)


def encode(history: Sequence[Message], abilities: Abilities, state: EncodingState) -> list[dict[str, Any]]:
    """Encode messages; each part is an item of its own."""
    items: list[dict[str, Any]] = []
    for message in valid_history(history, abilities, state):
        match message.role:
            case "user":
                items.append({"role": "user", "content": _content(message.parts)})
            case "assistant":
                items += _encode_answer(message.parts, abilities)
            case _:
                items.append(_encode_result(message.parts))
    return items


def _choose_reasoning(endpoint: Endpoint, request: StepRequest) -> dict[str, Any] | None:
    """Request a summary: without it the user sees nothing for minutes."""
    if not endpoint.info.reasoning:
        return None
    if request.effort is None:
        return {"summary": "auto"}
    return {"effort": endpoint.info.clamp_effort(request.effort), "summary": "auto"}


def _encode_tools(request: StepRequest) -> list[dict[str, Any]]:
    tools = [_encode_tool(tool) for tool in request.tools]
    return tools if request.search_price is None else [*tools, {"type": "web_search"}]


def _list_included(endpoint: Endpoint, request: StepRequest) -> list[str]:
    """What the provider sends only if it is asked for."""
    reasoning = ["reasoning.encrypted_content"] if endpoint.info.reasoning else []
    return reasoning if request.search_price is None else [*reasoning, "web_search_call.action.sources"]


def _encode_tool(tool: ToolSpec) -> dict[str, Any]:
    # The default is strict, which rejects schemas with optional fields.
    fields = {"name": tool.name, "description": tool.description, "parameters": tool.input_schema}
    return {"type": "function", **fields, "strict": False}


def _encode_answer(parts: Sequence[Part], abilities: Abilities) -> list[dict[str, Any]]:
    """Encode reasoning, texts and calls in order. Calls and texts have no item ids: with ids the provider would require
    all reasoning before them, even if some was lost."""
    items: list[dict[str, Any]] = []
    phase = ""
    for part in parts:
        match part:
            case Text(text):
                item = {"role": "assistant", "content": text}
                items.append({**item, "phase": phase} if phase else item)
                phase = ""
            case ToolCall(call_id, name, arguments):
                items.append({"type": "function_call", "call_id": call_id, "name": name, "arguments": arguments})
            case Reasoning(_, signature) if hosted_search.is_marked(signature):
                items += hosted_search.read_items(signature)
            case Reasoning(text, signature) if mark := read_mark(signature):
                phase = mark.phase or phase
                if mark.id:
                    _add_reasoning(items, mark, text)
            case _:
                pass
    return [item for item in items if item.get("type") != "reasoning" or _can_return(item, abilities)]


def _add_reasoning(items: list[dict[str, Any]], mark: Mark, text: str) -> None:
    if not items or items[-1].get("id") != mark.id:
        items.append({"type": "reasoning", "id": mark.id, "summary": []})
    item = items[-1]
    if text and mark.is_raw:
        item.setdefault("content", []).append({"type": "reasoning_text", "text": text})
    elif text:
        item["summary"].append({"type": "summary_text", "text": text})
    if mark.encrypted_content:
        item["encrypted_content"] = mark.encrypted_content


def _can_return(item: dict[str, Any], abilities: Abilities) -> bool:
    """False for an item with only an id: the provider has not stored it."""
    return abilities.encrypted_reasoning if "encrypted_content" in item else "content" in item


def _encode_result(parts: Sequence[Part]) -> dict[str, Any]:
    result, *images = parts
    assert isinstance(result, ToolResult)
    output = _content([Text(result.content), *images])
    return {"type": "function_call_output", "call_id": result.tool_call_id, "output": output}


def _content(parts: Sequence[Part]) -> str | list[dict[str, Any]]:
    if len(parts) == 1 and isinstance(parts[0], Text):  # fast path for nearly all messages
        return parts[0].text
    return list(_blocks(parts))


def _blocks(parts: Iterable[Part]) -> Iterable[dict[str, Any]]:
    for part in parts:
        match part:
            case Text(text):
                yield {"type": "input_text", "text": text}
            case Image(mime_type, data):
                yield {"type": "input_image", "image_url": requests.make_data_url(mime_type, data), "detail": "auto"}
            case File(name, mime_type, data):
                yield {"type": "input_file", "filename": name, "file_data": requests.make_data_url(mime_type, data)}
            case _:
                pass


_INCOMPLETE_REASONS: dict[str, FinishReason] = {"max_output_tokens": "max_tokens", "content_filter": "content_filter"}


class _ItemPart(msgspec.Struct):
    """A part of a message or reasoning item."""

    type: str = ""
    text: str | None = None
    refusal: str | None = None

    @property
    def content(self) -> str:
        return self.text or self.refusal or ""


class _Item(msgspec.Struct):
    type: str = ""
    id: str | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    phase: str | None = None
    content: list[_ItemPart] | None = None
    summary: list[_ItemPart] | None = None
    encrypted_content: str | None = None


class _Details(msgspec.Struct):
    reason: str | None = None


class _Response(msgspec.Struct):
    status: str | None = None
    incomplete_details: _Details | None = None
    error: Any = None
    usage: Any = None
    output: Any = None


class _Event(msgspec.Struct):
    """Unknown events use the same names for other things, so nested fields are decoded only for known types."""

    type: str = ""
    output_index: int | None = None
    item_id: str | None = None
    content_index: int = 0
    summary_index: int = 0
    delta: Any = None
    item: Any = None
    response: Any = None
    error: Any = None
    code: Any = None
    message: Any = None


_ITEM_TYPES = frozenset({"message", "reasoning", "function_call"})
_decode = make_json_decoder(_Event)


class _OpenItem:
    """An item that is still arriving."""

    def __init__(self, key: str) -> None:
        self.key = key
        self.parts: dict[str, bool] = {}  # by block: whether it has content
        self.is_call = False
        self.has_phase = False

    def add_part(self, kind: str, index: int = 0) -> str:
        block = f"{self.key}.{kind}{index}" if kind else self.key
        self.parts.setdefault(block, False)
        return block


class ResponsesStream(AnswerStream):
    def __init__(self, endpoint: Endpoint, request: StepRequest) -> None:
        super().__init__(endpoint, request)
        self._open: dict[str, _OpenItem] = {}
        self._ended: set[str] = set()
        self._calls = 0
        self._searches = 0  # by the provider itself
        self._search_price = request.search_price  # of one; None: it may not search

    def _parse_data(self, data: bytes, event_name: str) -> list[Delta]:
        decoded = _decode(data)
        match decoded.type or event_name:
            case "response.output_text.delta" | "response.refusal.delta":
                return self._parse_text(decoded)
            case "response.function_call_arguments.delta":
                return self._parse_input(decoded)
            case "response.reasoning_summary_text.delta":
                return self._parse_reasoning(decoded, "s", decoded.summary_index)
            case "response.reasoning_text.delta":
                return self._parse_reasoning(decoded, "t", decoded.content_index)
            case "response.output_item.added":
                return self._begin_item(decoded)
            case "response.output_item.done" if self._is_search(decoded.item):
                return self._end_search(_item_key(decoded), as_object(decoded.item))
            case "response.output_item.done":
                return self._end_item(_item_key(decoded), _convert_item(decoded.item))
            case "response.completed" | "response.incomplete":
                return self._finish(convert(decoded.response, _Response))
            case "response.failed":
                raise self._make_error(convert(decoded.response, _Response).error)
            case "error":
                raise self._make_error(decoded.error or {"code": decoded.code, "message": decoded.message})
            case "" if decoded.error is not None:  # from a gateway
                raise self._make_error(decoded.error)
            case _:
                return []

    def _parse_text(self, event: _Event) -> list[Delta]:
        item = self._find_item(event)
        return self._add_piece(
            item, values.TextDelta(convert(event.delta, str), item.add_part("c", event.content_index))
        )

    def _parse_reasoning(self, event: _Event, kind: str, index: int) -> list[Delta]:
        item = self._find_item(event)
        return self._add_piece(item, values.ReasoningDelta(convert(event.delta, str), item.add_part(kind, index)))

    def _parse_input(self, event: _Event) -> list[Delta]:
        item = self._find_item(event)
        arguments = convert(event.delta, str)
        return self._add_piece(item, values.ToolCallDelta(item.add_part(""), input=arguments)) if item.is_call else []

    def _add_piece(
        self, item: _OpenItem, piece: values.TextDelta | values.ReasoningDelta | values.ToolCallDelta
    ) -> list[Delta]:
        is_empty = not (piece.input if isinstance(piece, values.ToolCallDelta) else piece.text)
        if is_empty or item.key in self._ended:
            return []
        item.parts[piece.block] = True
        return [piece]

    def _begin_item(self, event: _Event) -> list[Delta]:
        item = _convert_item(event.item)
        return [] if item is None else self._open_item(self._find_item(event), item)

    def _open_item(self, open_item: _OpenItem, item: _Item) -> list[Delta]:
        match item.type:
            case "function_call" if not open_item.is_call:
                open_item.is_call = True
                call_id = self._ids.make_unique(item.call_id or item.id or "", self._calls)
                self._calls += 1
                return [values.ToolCallDelta(open_item.add_part(""), call_id, item.name or "")]
            case "message" if item.phase and not open_item.has_phase:
                open_item.has_phase = True
                block = f"{open_item.key}.phase"
                return [values.ReasoningDelta("", block, Mark(phase=item.phase).signature), values.BlockEnd(block)]
            case _:
                return []

    def _end_item(self, key: str, item: _Item | None) -> list[Delta]:
        """End an item. Parts whose content did not arrive in deltas are taken from the complete item."""
        if item is None or key in self._ended:
            return []
        open_item = self._open.setdefault(key, _OpenItem(key))
        deltas = [] if open_item.parts else self._open_item(open_item, item)
        match item.type:
            case "function_call":
                block = open_item.add_part("")
                if not open_item.parts[block]:
                    deltas.append(values.ToolCallDelta(block, input=item.arguments or "{}"))
            case "message":
                for i, part in enumerate(item.content or ()):
                    if part.content and not open_item.parts[open_item.add_part("c", i)]:
                        deltas.append(values.TextDelta(part.content, open_item.add_part("c", i)))
            case _:
                deltas += _reasoning_deltas(open_item, item)
        self._ended.add(key)
        del self._open[key]
        return [*deltas, *(values.BlockEnd(block) for block in open_item.parts)]

    def _is_search(self, item: Any) -> bool:
        return self._search_price is not None and as_object(item).get("type") == "web_search_call"

    def _end_search(self, key: str, item: dict[str, Any]) -> list[Delta]:
        """Store a search of the provider. Its id is left out: nothing is stored there that it could refer to."""
        action = as_object(item.get("action"))
        if action.get("type", "search") == "search":
            self._searches += 1
            queries: Any = action.get("queries")
            text = hosted_search.describe_queries(queries if isinstance(queries, list) else [action.get("query")])  # pyright: ignore[reportUnknownArgumentType]
        else:
            text = f"Opened {action.get('url')}."
        listed: Any = action.get("sources")
        sources = [as_object(each) for each in listed] if isinstance(listed, list) else []  # pyright: ignore[reportUnknownVariableType]
        if shown := hosted_search.describe_sources([(each.get("title"), each.get("url")) for each in sources]):
            text += f"\n{shown}"
        kept = {name: value for name, value in item.items() if name != "id"}
        block = f"{key}.search"
        return [values.ReasoningDelta(text, block, hosted_search.mark("responses", [kept])), values.BlockEnd(block)]

    def _finish(self, response: _Response) -> list[Delta]:
        deltas: list[Delta] = []
        output: object = response.output
        if not self._ended and not self._open and isinstance(output, list):  # the whole answer came in this event
            for i, value in enumerate(cast("list[Any]", output)):
                if self._is_search(value):
                    deltas += self._end_search(str(i), as_object(value))
                else:
                    deltas += self._end_item(str(i), _convert_item(value))
        for item in self._open.values():  # it has no input
            if item.is_call and not item.parts[item.add_part("")]:
                deltas.append(values.ToolCallDelta(item.add_part(""), input="{}"))
        usage = _parse_usage(response.usage)
        if self._searches:
            usage = usage or values.UsageReport()
            usage = msgspec.structs.replace(usage, search_cost=self._searches * (self._search_price or 0.0))
        if usage is not None:
            deltas.append(usage)
        return [*deltas, values.StepEnd(self._finish_reason(response)), values.StreamEnd()]

    def _finish_reason(self, response: _Response) -> FinishReason:
        if response.incomplete_details is not None and response.incomplete_details.reason:
            return _INCOMPLETE_REASONS.get(response.incomplete_details.reason, "unknown")
        if response.status == "incomplete":
            return "unknown"
        return "tool_use" if self._calls else "end_turn"

    def _make_error(self, error: Any) -> ModelError:
        return error_from_event(msgspec.json.encode({"error": error}), self._endpoint)

    def _find_item(self, event: _Event) -> _OpenItem:
        key = _item_key(event)
        return self._open.setdefault(key, _OpenItem(key)) if key not in self._ended else _OpenItem(key)


def _item_key(event: _Event) -> str:
    return str(event.output_index) if event.output_index is not None else event.item_id or "0"


def _reasoning_deltas(open_item: _OpenItem, item: _Item) -> list[Delta]:
    """Return the text that did not arrive in deltas, and the signatures."""
    raw = [(open_item.add_part("t", i), part.content) for i, part in enumerate(item.content or ()) if part.content]
    summaries = [
        (open_item.add_part("s", i), part.content) for i, part in enumerate(item.summary or ()) if part.content
    ]
    deltas: list[Delta] = [
        values.ReasoningDelta(text, block) for block, text in [*summaries, *raw] if not open_item.parts[block]
    ]
    if not item.id:
        return deltas
    blocks = list(open_item.parts) or [open_item.add_part("s")]
    for block in blocks:
        encrypted = item.encrypted_content or "" if block == blocks[-1] else ""
        is_raw = block.startswith(f"{open_item.key}.t")
        deltas.append(
            values.ReasoningDelta("", block, Mark(id=item.id, encrypted_content=encrypted, is_raw=is_raw).signature)
        )
    return deltas


def _convert_item(value: Any) -> _Item | None:
    return convert(value, _Item) if as_object(value).get("type") in _ITEM_TYPES else None


def _parse_usage(report: Any) -> values.UsageReport | None:
    fields = as_object(report)
    details = as_object(fields.get("input_tokens_details"))
    prompt, output = count(fields.get("input_tokens")), count(fields.get("output_tokens"))
    if not prompt and not output:
        return None
    cached, stored = count(details.get("cached_tokens")), count(details.get("cache_write_tokens"))
    # The provider counts cached tokens as input, too; we count each token once. Reasoning is output.
    return values.UsageReport(
        input_tokens=max(0, prompt - cached - stored),
        output_tokens=output,
        cache_read_tokens=cached,
        cache_write_tokens=stored or None,
    )
