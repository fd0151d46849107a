"""Tool calls that a model wrote as the text of its answer, as small local models do where their server does not see it.

An answer is taken for calls only if it is nothing else: no word around them, each with the name of an offered tool and
an input that the tool accepts. So an answer that explains a call, or shows one as an example, is never run.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, NamedTuple, cast
from urllib.parse import urlsplit

import msgspec

from kedge.agent.tool_params import decode_params
from kedge.models.providers import BUILT_IN
from kedge.models.values import Endpoint
from kedge.protocol.tool_input import correct_tool_name, parse_tool_input
from kedge.tools.errors import ToolError
from kedge.tools.port import Tool

MAX_CALLS = 20
MAX_CHARS = 1_000_000

_THINKING = re.compile(r"<think(?:ing)?>.*?</think(?:ing)?>", re.DOTALL)
_END_TOKEN = re.compile(r"(?:<\|(?:eom_id|eot_id|im_end|end|endoftext|return|call)\|>|</s>)\Z")
# Words that some models write before a list of calls or a single one.
_PREFIX = re.compile(r"(?:<\|python_tag\|>|<\|tool_call\|>|\[TOOL_CALLS\]|functools(?=\s*\[))\s*")
# No white space before the ends: in a long run of it the time would be quadratic.
_FENCE = re.compile(r"```[a-zA-Z_]*+[ \t]*+\n(.*?)```", re.DOTALL)
_TAG = re.compile(r"<(tool_call|tools|tool|function_call|tool_use)>(.*?)(?:</\1>|\Z)", re.DOTALL)
_FUNCTION = re.compile(r"<function=([\w.-]+)>(.*?)(?:</function>|\Z)", re.DOTALL)  # Llama, Qwen3-Coder
_PARAMETER = re.compile(r"<parameter=([\w.-]+)>\n?(.*?)\n?</parameter>", re.DOTALL)
_MISTRAL = re.compile(r"(?:\[TOOL_CALLS\])?\s*+([\w.-]++)\s*+\[ARGS\]\s*+(\{.*?\})\s*+(?=\[TOOL_CALLS\]|\Z)", re.DOTALL)

_NAMES = ("name", "tool", "tool_name", "function", "function_name", "action")
_INPUTS = ("arguments", "parameters", "input", "args", "params", "tool_input", "action_input")
_OTHER_FIELDS = frozenset({"id", "type", "call_id", "tool_call_id", "index"})
_WRAPPERS = ("function", "tool_call", "function_call", "tool_calls", "calls")


class TextCall(NamedTuple):
    name: str
    input: str


def may_write_calls_as_text(endpoint: Endpoint) -> bool:
    """Return whether the server is not a vendor's own, which sees the calls of its models itself."""
    return endpoint.is_local or endpoint.host not in _vendor_hosts()


@cache
def _vendor_hosts() -> frozenset[str]:
    return frozenset(urlsplit(provider.base_url).netloc for provider in BUILT_IN if provider.base_url)


def find_text_calls(text: str, tools: Mapping[str, Tool]) -> list[TextCall]:
    """Return the calls that the whole answer consists of; none if it is anything else."""
    if len(text) > MAX_CHARS:
        return []
    text = text.strip()
    while end := _END_TOKEN.search(text, max(len(text) - 20, 0)):
        text = text[: end.start()].rstrip()
    text = _THINKING.sub("", text, count=1).strip() if text.startswith("<think") else text
    if not text.endswith(("}", "]", "`", ">")):  # the common case: an answer in words
        return []
    calls: list[TextCall] = []
    try:
        for name, given in _read_calls(text):
            tool = tools.get(correct_tool_name(name, tools))
            if tool is None or len(calls) == MAX_CALLS:
                return []
            written = msgspec.json.encode(given).decode()
            decode_params(tool, written)
            calls.append(TextCall(tool.name, written))
    except (_NotACall, ToolError, RecursionError, UnicodeError):
        return []
    return calls


class _NotACall(Exception):
    """The text is something else than calls, at least in part."""


def _read_calls(text: str) -> Iterator[tuple[str, dict[str, Any]]]:
    if found := _match_all(_MISTRAL, text):
        for each in found:
            yield each[1], _read_input(each[2])
        return
    if prefix := _PREFIX.match(text):
        text = text[prefix.end() :]
    for pattern, group in ((_FENCE, 1), (_TAG, 2)):
        if found := _match_all(pattern, text):
            for each in found:
                yield from _read_calls(each[group].strip())
            return
    if found := _match_all(_FUNCTION, text):
        for each in found:
            yield each[1], _read_function_input(each[2].strip())
        return
    for value in _read_values(text):
        yield from _read_value(value)


def _match_all(pattern: re.Pattern[str], text: str) -> list[re.Match[str]]:
    """Return the matches that make up the whole text, with only white space between them; none if they do not."""
    found: list[re.Match[str]] = []
    at = 0
    while at < len(text):
        match = pattern.match(text, at)
        if match is None or match.end() == at:
            return []
        found.append(match)
        at = match.end()
        while at < len(text) and text[at].isspace():
            at += 1
    return found


def _read_values(text: str) -> Iterator[Any]:
    """Yield the JSON objects and lists that make up the text."""
    whole = parse_tool_input(f'{{"values": {text}}}')  # accepts raw newlines and trailing commas
    if whole is not None and whole.keys() == {"values"}:
        yield whole["values"]
        return
    decoder = json.JSONDecoder(strict=False)
    at = 0
    while at < len(text):
        try:
            value, end = decoder.raw_decode(text, at)
        except ValueError as error:
            raise _NotACall from error
        yield value
        at = end
        while at < len(text) and text[at] in " \t\r\n;":
            at += 1


def _read_value(value: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    if isinstance(value, list):
        for each in cast("list[Any]", value):
            yield from _read_value(each)
        return
    if not isinstance(value, dict):
        raise _NotACall
    fields = {name: each for name, each in cast("dict[str, Any]", value).items() if name not in _OTHER_FIELDS}
    wrapper = next(iter(fields)) if len(fields) == 1 else ""
    if wrapper in _WRAPPERS and isinstance(fields[wrapper], dict | list):
        yield from _read_value(fields[wrapper])
        return
    names = [name for name in _NAMES if name in fields]
    inputs = [name for name in _INPUTS if name in fields]
    if len(fields) != 2 or len(names) != 1 or len(inputs) != 1 or not isinstance(fields[names[0]], str):
        raise _NotACall
    yield fields[names[0]], _read_input(fields[inputs[0]])


def _read_input(value: Any) -> dict[str, Any]:
    given = parse_tool_input(value) if isinstance(value, str) else value
    if not isinstance(given, dict):
        raise _NotACall
    return cast("dict[str, Any]", given)


def _read_function_input(text: str) -> dict[str, Any]:
    if text.startswith("{"):
        return _read_input(text)
    found = _match_all(_PARAMETER, text)
    if text and not found:
        raise _NotACall
    return {each[1]: each[2] for each in found}
