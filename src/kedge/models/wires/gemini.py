"""The wire of Google's Gemini, outwards: a step becomes a request. Pure: no network in here.

What Gemini signs comes back to it on the very part that it signed. In a message a signature is a `Reasoning` part:
before its call, after its text, or on the thoughts themselves; `mark` and `read_mark` say which.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from itertools import groupby
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

import msgspec

from kedge.config.schema import Effort
from kedge.models.errors import Refused
from kedge.models.values import Endpoint, HttpRequest, StepRequest, ToolSpec
from kedge.models.wires import requests
from kedge.models.wires.chat import IMAGES_NOTE
from kedge.models.wires.encoded_cache import Said
from kedge.models.wires.history import GO_ON, Abilities, Past, valid_history
from kedge.protocol.messages import File, Image, Message, Part, Reasoning, Text, ToolCall, ToolResult

VERSION = "v1beta"  # of the wire: the one that all its servers and gateways have
IMAGE_TYPES = frozenset({"image/png", "image/jpeg", "image/webp"})
# The third generation refuses a step whose first call is not signed; for calls of others the vendor has this word.
NOT_SIGNED = "skip_thought_signature_validator"
# The generations before that think by a budget: the numbers that the vendor itself takes these words for.
BUDGETS: dict[Effort, int] = {"minimal": 1024, "low": 1024, "medium": 8192, "high": 24_576}
PAGE_SIZE = 1000  # of the list of models; the most there is

_OLDER = re.compile(r"gemini-(?:pro\b(?!-latest)|[12]\b)|gemma|learnlm", re.I)
_MARKED = "gemini:"  # how a signature of this wire begins: others leave it alone, and we leave theirs
_MARK = re.compile(_MARKED + r"(thought|call|text-\d{1,9}):(.+)", re.S)


def prepare_request(endpoint: Endpoint, request: StepRequest, said: Said | None = None) -> HttpRequest:
    is_later = not is_older(endpoint.model)
    able = _abilities(endpoint, request)
    encoder = encode if is_later else encode_older
    if said is not None:
        contents = said.messages(encoder, request.history, able)
    else:
        contents = list[Any](encoder(request.history, able, Past()))
    if not contents or contents[-1]["role"] == "model":
        contents.append(_content("user", [{"text": GO_ON}]))  # models answer someone
    fields: dict[str, Any] = {
        "systemInstruction": {"parts": [{"text": request.system}]} if request.system else None,
        "tools": [{"functionDeclarations": [_tool(tool) for tool in request.tools]}] if able.tools else None,
        "generationConfig": _generation(endpoint, request, is_later=is_later) or None,
        "contents": contents,
    }
    headers = requests.headers(endpoint, _key(endpoint), is_stream=True)
    url = f"{_base(endpoint)}/{_place(endpoint.model)}:streamGenerateContent?alt=sse"
    return HttpRequest("POST", url, headers, requests.body(endpoint, fields))


def prepare_listing(endpoint: Endpoint) -> HttpRequest:
    headers = requests.headers(endpoint, _key(endpoint), is_stream=False)
    return HttpRequest("GET", f"{_base(endpoint)}/models?pageSize={PAGE_SIZE}", headers)


class _Model(msgspec.Struct, rename="camel"):
    name: str
    supported_generation_methods: list[str] | None = None  # None: the server does not say what its models do

    @property
    def is_writer(self) -> bool:
        return self.supported_generation_methods is None or "generateContent" in self.supported_generation_methods


class _Listing(msgspec.Struct, rename="camel"):
    models: list[_Model] = []
    next_page_token: str = ""


def parse_listing(data: bytes) -> list[str]:
    """The models that write texts, by the names that a request has."""
    models = _listing(data).models
    return [model.name.removeprefix("models/") for model in models if model.is_writer]


def next_listing(asked: HttpRequest, data: bytes) -> HttpRequest | None:
    """The request for the page after this one; None: it was the last."""
    if not (token := _listing(data).next_page_token):
        return None
    page = urlencode({"pageSize": PAGE_SIZE, "pageToken": token})
    return msgspec.structs.replace(asked, url=f"{urlsplit(asked.url)._replace(query='').geturl()}?{page}")


def encode(history: Sequence[Message], abilities: Abilities, past: Past) -> list[dict[str, Any]]:
    return _contents(history, abilities, past, is_later=True)


def encode_older(history: Sequence[Message], abilities: Abilities, past: Past) -> list[dict[str, Any]]:
    """For the generations that want no signatures, and whose results are only text: their images follow as a user's."""
    return _contents(history, abilities, past, is_later=False)


def is_older(model: str) -> bool:
    """Is it of a generation before the third?"""
    return _OLDER.search(model) is not None


def mark(kind: str, signature: str) -> str:
    """What is kept of a signature: `thought` (of the thoughts it is kept with), `call` (of the call that follows), or
    `text-N` (of the last N characters of the text before; 0: of an empty part)."""
    return f"{_MARKED}{kind}:{signature}"


def read_mark(kept: str | None) -> tuple[str, str] | None:
    """The kind and the signature; None: it is of another wire, which the provider spoke before."""
    found = _MARK.fullmatch(kept or "")
    return (found[1], found[2]) if found else None


def is_marked(signature: str) -> bool:
    """Is it this wire's?"""
    return signature.startswith(_MARKED)


def _key(endpoint: Endpoint) -> dict[str, str]:
    return {} if endpoint.api_key is None else {"x-goog-api-key": endpoint.api_key}


def _base(endpoint: Endpoint) -> str:
    """The vendor's address is written without the version; those of others may have one."""
    is_versioned = re.search(r"/v\d\w*$", endpoint.base_url) is not None
    return endpoint.base_url if is_versioned else f"{endpoint.base_url}/{VERSION}"


def _place(model: str) -> str:
    is_whole = model.startswith(("models/", "tunedModels/"))
    return quote(model if is_whole else f"models/{model}", safe="/:@")


def _abilities(endpoint: Endpoint, request: StepRequest) -> Abilities:
    able = requests.abilities(endpoint, request, "any")
    sees = endpoint.info.images
    return msgspec.structs.replace(able, image_types=IMAGE_TYPES, pdfs=sees, last_thoughts=True)


def _generation(endpoint: Endpoint, request: StepRequest, *, is_later: bool) -> dict[str, Any]:
    info = endpoint.info
    config: dict[str, Any] = {}
    if limit := request.max_output_tokens or info.max_output_tokens:
        config["maxOutputTokens"] = limit
    if not info.reasoning:
        return config
    thinking: dict[str, Any] = {"includeThoughts": True}  # it thinks anyway, and people may see what
    if request.effort is not None:
        effort = info.taken(request.effort)
        thinking |= {"thinkingLevel": effort.upper()} if is_later else {"thinkingBudget": BUDGETS[effort]}
    return {**config, "thinkingConfig": thinking}


def _tool(tool: ToolSpec) -> dict[str, Any]:
    """With the tool's own JSON Schema: the wire's older way of telling it knows only a part of what schemas say."""
    return {"name": tool.name, "description": tool.description, "parametersJsonSchema": tool.input_schema}


def _contents(history: Sequence[Message], abilities: Abilities, past: Past, *, is_later: bool) -> list[dict[str, Any]]:
    """Answers that follow each other are one: a call must come right after what a user said. All results of a step are
    one too, and nothing else is in there: they are counted."""
    encoded: list[dict[str, Any]] = []
    for role, group in groupby(valid_history(history, abilities, past), lambda message: message.role):
        match role:
            case "user":
                encoded += [_content("user", [_shown(part) for part in message.parts]) for message in group]
            case "assistant":
                parts = [part for message in group for part in _answer(message, is_later=is_later)]
                encoded.append(_content("model", _admitted(parts) if is_later else parts))
            case _:
                encoded += _results(list(group), is_later=is_later)
    return encoded


def _content(role: str, parts: list[dict[str, Any]]) -> dict[str, Any]:
    return {"role": role, "parts": parts}


def _answer(message: Message, *, is_later: bool) -> list[dict[str, Any]]:
    model = (message.model or "").partition("/")[2]
    can_read = is_older(model) != is_later  # a signature is of its own generation
    parts: list[dict[str, Any]] = []
    of_call = ""
    for part in message.parts:
        match part:
            case Text(text):
                of_call = ""
                parts.append({"text": text})
            case ToolCall(call_id, name, given):
                call = {"functionCall": {"id": call_id, "name": name, "args": msgspec.Raw(given.encode())}}
                parts.append(_signed(call, of_call))
                of_call = ""
            case Reasoning(text, kept) if can_read and (found := read_mark(kept)):
                kind, signature = found
                if kind == "call":
                    of_call = signature
                elif kind == "thought":
                    parts.append(_signed({"text": text, "thought": True}, signature))
                else:
                    _sign_text(parts, int(kind.removeprefix("text-")), signature)
            case _:
                pass
    return parts


def _sign_text(parts: list[dict[str, Any]], size: int, signature: str) -> None:
    """Texts are kept joined: what was signed is cut off again. Where it is not there any more, an empty part has it."""
    last = parts[-1] if parts else {}
    text = "" if "thoughtSignature" in last else last.get("text", "")
    if not 0 < size <= len(text):
        parts.append(_signed({"text": ""}, signature))
        return
    rest = text[:-size]
    parts[-1:] = [*([{"text": rest}] if rest else []), _signed({"text": text[-size:]}, signature)]


def _signed(part: dict[str, Any], signature: str) -> dict[str, Any]:
    return {**part, "thoughtSignature": signature} if signature else part


def _admitted(parts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """With a word for the first call, where nobody signed it."""
    first = next((i for i, part in enumerate(parts) if "functionCall" in part), None)
    if first is not None and "thoughtSignature" not in parts[first]:
        parts[first] = _signed(parts[first], NOT_SIGNED)
    return parts


def _results(messages: Sequence[Message], *, is_later: bool) -> list[dict[str, Any]]:
    parts: list[dict[str, Any]] = []
    apart: list[dict[str, Any]] = []
    for message in messages:
        result, *images = message.parts
        assert isinstance(result, ToolResult)
        told = {"error" if result.is_error else "output": result.content}
        response: dict[str, Any] = {"id": result.tool_call_id, "name": result.name, "response": told}
        shown = [_shown(image) for image in images]
        if is_later and shown:
            response["parts"] = shown
        else:
            apart += shown
        parts.append({"functionResponse": response})
    seen = [_content("user", [{"text": IMAGES_NOTE}, *apart])] if apart else []
    return [_content("user", parts), *seen]


def _shown(part: Part) -> dict[str, Any]:
    match part:
        case Text(text):
            return {"text": text}
        case Image(mime_type, data) | File(_, mime_type, data):
            return {"inlineData": {"mimeType": mime_type, "data": base64.b64encode(data).decode()}}
        case _:
            raise AssertionError(f"a user says no {type(part).__name__}")


def _listing(data: bytes) -> _Listing:
    try:
        return msgspec.json.decode(data, type=_Listing)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Refused("bad_response", f"the list of models cannot be read: {error}") from error
