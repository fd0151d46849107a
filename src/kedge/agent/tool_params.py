"""Decodes the input of a tool call into the tool's struct, or explains to the model how to correct it."""

from __future__ import annotations

import difflib
import re
import threading
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, cast

import msgspec

from kedge.models.values import ToolSpec
from kedge.protocol.tool_input import correct_params, find_similar_tool, parse_tool_input
from kedge.tools.errors import ToolError
from kedge.tools.port import JsonParams, Tool

_MAX_QUOTED_CHARS = 200  # of a model's own text
_ERROR_PATH = re.compile(r" - at `\$([^`]*)`")  # in msgspec's messages, as `$.todos[0].status`
# msgspec prepares a struct at its first use and crashes if another thread uses it meanwhile. The server warms up in a
# thread, so schemas are built one at a time, and `decode_params` builds the schema before it uses the struct.
_schema_lock = threading.Lock()
_PATH_SEGMENT = re.compile(r"\.(\w+)|\[(\d+|\.\.\.)\]")


def describe_tool(tool: Tool) -> ToolSpec:
    """Return what the model is told about a tool."""
    if tool.input_schema is not None:
        return ToolSpec(tool.name, tool.description, tool.input_schema)
    return _describe_built_in(tool)


@cache
def _describe_built_in(tool: Tool) -> ToolSpec:
    """It never changes while the server runs."""
    return ToolSpec(tool.name, tool.description, build_input_schema(tool.params))


def build_input_schema(params: type[msgspec.Struct]) -> dict[str, Any]:
    """Return the JSON schema of a tool's parameters without references: some servers do not support them."""
    with _schema_lock:
        schema = msgspec.json.schema(params)
    return _inline_refs({"$ref": schema["$ref"]}, schema.get("$defs", {}))


def decode_params(tool: Tool, text: str) -> msgspec.Struct:
    """Return the parameters of a call; raise `ToolError`.

    Accepts common mistakes of models: other names for parameters, raw newlines in strings, numbers and booleans in
    quotes, null for an omitted field, a list or an object as a string of JSON.
    """
    try:
        schema = describe_tool(tool).input_schema
        given = _normalize(correct_params(tool.name, _normalize(_parse_json(tool, text), schema)), schema)
    except RecursionError as error:
        raise _bad_input(tool, "is nested too deeply.", _explain_params(tool)) from error
    if tool.input_schema is not None:
        return JsonParams(given)
    try:
        return msgspec.convert(given, tool.params, strict=False)
    except msgspec.ValidationError as error:
        raise _bad_input(tool, f"is not right: {error}.", _explain_params(tool, given, str(error))) from error


def _bad_input(tool: Tool, problem: str, advice: str) -> ToolError:
    summary = f"The model called {tool.name} with invalid input."
    return ToolError(f"The input of `{tool.name}` {problem}", advice, summary=summary)


def explain_unknown_tool(name: str, known: Iterable[str]) -> str:
    names = sorted(known)
    if not names:
        return f"There is no tool `{name[:_MAX_QUOTED_CHARS]}`: you have no tools here. Answer without."
    similar = find_similar_tool(name)
    near = [similar] if similar in names else difflib.get_close_matches(name, names, 1)
    hint = f" Did you mean `{near[0]}`?" if near else ""
    return f"There is no tool `{name[:_MAX_QUOTED_CHARS]}`.{hint} Your tools are: {', '.join(names)}."


def _parse_json(tool: Tool, text: str) -> dict[str, Any]:
    try:
        given: Any = msgspec.json.decode(text.strip() or "{}")
        if isinstance(given, str):  # encoded twice, as some models do
            given = msgspec.json.decode(given)
        if given is None:
            given = {}
    except (msgspec.DecodeError, UnicodeError) as error:
        if (repaired := parse_tool_input(text)) is not None:
            return repaired
        advice = f"Was it cut off? {_explain_params(tool)}"
        raise _bad_input(tool, f"is not valid JSON: {error}.", advice) from error
    if not isinstance(given, dict):
        raise _bad_input(tool, "must be a JSON object.", _explain_params(tool))
    return cast("dict[str, Any]", given)


def _normalize(given: Any, schema: Mapping[str, Any]) -> Any:
    kind = {"array": list[Any], "object": dict[str, Any]}.get(schema.get("type", ""))
    if isinstance(given, str) and kind is not None:
        try:
            given = msgspec.json.decode(given, type=kind)
        except (msgspec.MsgspecError, UnicodeError):
            return given
    match given:
        case {**fields}:
            properties: dict[str, Any] = schema.get("properties", {})
            omitted = {name for name, value in fields.items() if value is None} - set(schema.get("required", ()))
            return {
                name: _normalize(value, properties.get(name, {}))
                for name, value in fields.items()
                if name not in omitted
            }
        case [*items]:
            return [_normalize(item, schema.get("items", {})) for item in items]
        case _:
            return given


def _explain_params(tool: Tool, given: Any = None, error: str = "") -> str:
    """Describe the tool's parameters, with suggestions for unknown names that were given."""
    schema = describe_tool(tool).input_schema
    params = _list_params(schema)
    sentences = [f"It takes {params}." if params else "It takes no parameters."]
    for name, each in schema.get("properties", {}).items():
        if inner := _list_params(each.get("items", {})):
            sentences.append(f"Each of `{name}` is an object that takes {inner}.")
    sentences += _suggest_names(schema, given)
    path = _ERROR_PATH.search(error)
    for name, index in _PATH_SEGMENT.findall(path[1]) if path else ():  # follow the path to the error
        schema = schema.get("properties", {}).get(name, {}) if name else schema.get("items", {})
        match given:
            case {**fields}:
                given = fields.get(name)
            case [*items] if index.isdigit() and int(index) < len(items):
                given = items[int(index)]
            case _:
                break
        sentences += _suggest_names(schema, given)
    return " ".join(sentences)


def _list_params(schema: Mapping[str, Any]) -> str:
    properties: dict[str, Any] = schema.get("properties", {})
    required = set(schema.get("required", ()))
    return ", ".join(
        f"`{name}` ({_format_type(each)}, {'required' if name in required else 'optional'})"
        for name, each in properties.items()
    )


def _suggest_names(schema: Mapping[str, Any], given: Any) -> list[str]:
    properties: dict[str, Any] = schema.get("properties", {})
    sentences: list[str] = []
    for name in cast("dict[str, Any]", given).keys() - properties.keys() if isinstance(given, dict) else ():
        near = difflib.get_close_matches(name, properties, 1)
        sentences.append(
            f"There is no `{name[:_MAX_QUOTED_CHARS]}`" + (f": did you mean `{near[0]}`?" if near else ".")
        )
    return sentences


def _format_type(schema: Mapping[str, Any]) -> str:
    if "enum" in schema:
        return " | ".join(map(str, schema["enum"]))
    if "anyOf" in schema:
        return " or ".join(_format_type(each) for each in schema["anyOf"] if each.get("type") != "null")
    if "items" in schema:
        return f"array of {_format_type(schema['items'])}"
    return str(schema.get("type", "any"))


def _inline_refs(schema: Any, definitions: Mapping[str, Any]) -> Any:
    match schema:
        case {"$ref": str(ref), **rest}:
            target = definitions[ref.rpartition("/")[2]]
            # The name and the docstring of a struct are not for the model.
            plain = {name: value for name, value in target.items() if name not in ("title", "description")}
            return _inline_refs({**plain, **rest}, definitions)
        case {"enum": [*values], **rest} if "type" not in rest and all(isinstance(value, str) for value in values):
            return {"type": "string", "enum": values, **_inline_refs(rest, definitions)}
        case {**fields}:
            return {name: _inline_refs(value, definitions) for name, value in fields.items()}
        case [*items]:
            return [_inline_refs(item, definitions) for item in items]
        case _:
            return schema
