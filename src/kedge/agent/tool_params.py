"""What a model sent as a call's input, as the tool's struct; or an error that teaches it to send the right thing."""

from __future__ import annotations

import difflib
import re
import threading
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, cast

import msgspec

from kedge.models.values import ToolSpec
from kedge.tools.errors import ToolError
from kedge.tools.port import Tool

_MAX_SHOWN = 200  # characters of a model's own words that are repeated to it
_PLACE = re.compile(r" - at `\$([^`]*)`")  # as msgspec says where the mistake is: `$.todos[0].status`
# msgspec learns a struct at its first use, and crashes whoever uses it meanwhile. The server warms up in a thread, and
# `decoded` asks for the schema first: one at a time, a struct is known before it is used.
_learning = threading.Lock()
_STEP = re.compile(r"\.(\w+)|\[(\d+|\.\.\.)\]")


@cache
def spec_of(tool: Tool) -> ToolSpec:
    """What the model is told of a tool; it never changes while the server lives."""
    return ToolSpec(tool.name, tool.description, input_schema(tool.params))


def input_schema(params: type[msgspec.Struct]) -> dict[str, Any]:
    """The JSON schema of a tool's parameters, with nothing referred to: some servers do not follow references."""
    with _learning:
        schema = msgspec.json.schema(params)
    return _inlined({"$ref": schema["$ref"]}, schema.get("$defs", {}))


def decoded(tool: Tool, text: str) -> msgspec.Struct:
    """Raises `ToolError`. What some models write otherwise is taken for what they mean: numbers and booleans in quotes,
    null for what is left out, a list or an object as its JSON."""
    try:
        given = _meant(_json(tool, text), spec_of(tool).input_schema)
    except RecursionError as error:
        raise ToolError(f"The input of `{tool.name}` is nested too deeply. {_help(tool)}") from error
    try:
        return msgspec.convert(given, tool.params, strict=False)
    except msgspec.ValidationError as error:
        raise ToolError(
            f"The input of `{tool.name}` is not right: {error}. {_help(tool, given, str(error))}"
        ) from error


def unknown_tool(name: str, known: Iterable[str]) -> str:
    names = sorted(known)
    if not names:
        return f"There is no tool `{name[:_MAX_SHOWN]}`: you have no tools here. Answer without."
    near = difflib.get_close_matches(name, names, 1)
    hint = f" Did you mean `{near[0]}`?" if near else ""
    return f"There is no tool `{name[:_MAX_SHOWN]}`.{hint} Your tools are: {', '.join(names)}."


def _json(tool: Tool, text: str) -> dict[str, Any]:
    try:
        given: Any = msgspec.json.decode(text.strip() or "{}")
        if isinstance(given, str):  # encoded twice, as some models do
            given = msgspec.json.decode(given)
        if given is None:
            given = {}
    except (msgspec.DecodeError, UnicodeError) as error:
        problem = f"The input of `{tool.name}` is not valid JSON: {error}. Was it cut off?"
        raise ToolError(f"{problem} {_help(tool)}") from error
    if not isinstance(given, dict):
        raise ToolError(f"The input of `{tool.name}` must be a JSON object. {_help(tool)}")
    return cast("dict[str, Any]", given)


def _meant(given: Any, schema: Mapping[str, Any]) -> Any:
    kind = {"array": list[Any], "object": dict[str, Any]}.get(schema.get("type", ""))
    if isinstance(given, str) and kind is not None:
        try:
            given = msgspec.json.decode(given, type=kind)
        except (msgspec.MsgspecError, UnicodeError):
            return given
    match given:
        case {**fields}:
            properties: dict[str, Any] = schema.get("properties", {})
            left_out = {name for name, value in fields.items() if value is None} - set(schema.get("required", ()))
            return {
                name: _meant(value, properties.get(name, {})) for name, value in fields.items() if name not in left_out
            }
        case [*items]:
            return [_meant(item, schema.get("items", {})) for item in items]
        case _:
            return given


def _help(tool: Tool, given: Any = None, error: str = "") -> str:
    """What the tool takes, also inside of its lists, and which of the given names may have been meant for what."""
    schema = input_schema(tool.params)
    takes = _takes(schema)
    words = [f"It takes {takes}." if takes else "It takes no parameters."]
    for name, each in schema.get("properties", {}).items():
        if inner := _takes(each.get("items", {})):
            words.append(f"Each of `{name}` is an object that takes {inner}.")
    words += _hints(schema, given)
    found = _PLACE.search(error)
    for name, index in _STEP.findall(found[1]) if found else ():  # inwards, to where the mistake is
        schema = schema.get("properties", {}).get(name, {}) if name else schema.get("items", {})
        match given:
            case {**fields}:
                given = fields.get(name)
            case [*items] if index.isdigit() and int(index) < len(items):
                given = items[int(index)]
            case _:
                break
        words += _hints(schema, given)
    return " ".join(words)


def _takes(schema: Mapping[str, Any]) -> str:
    properties: dict[str, Any] = schema.get("properties", {})
    required = set(schema.get("required", ()))
    return ", ".join(
        f"`{name}` ({_type(each)}, {'required' if name in required else 'optional'})"
        for name, each in properties.items()
    )


def _hints(schema: Mapping[str, Any], given: Any) -> list[str]:
    properties: dict[str, Any] = schema.get("properties", {})
    words: list[str] = []
    for name in cast("dict[str, Any]", given).keys() - properties.keys() if isinstance(given, dict) else ():
        near = difflib.get_close_matches(name, properties, 1)
        words.append(f"There is no `{name[:_MAX_SHOWN]}`" + (f": did you mean `{near[0]}`?" if near else "."))
    return words


def _type(schema: Mapping[str, Any]) -> str:
    if "enum" in schema:
        return " | ".join(map(str, schema["enum"]))
    if "anyOf" in schema:
        return " or ".join(_type(each) for each in schema["anyOf"] if each.get("type") != "null")
    if "items" in schema:
        return f"array of {_type(schema['items'])}"
    return str(schema.get("type", "any"))


def _inlined(schema: Any, definitions: Mapping[str, Any]) -> Any:
    match schema:
        case {"$ref": str(ref), **rest}:
            found = definitions[ref.rpartition("/")[2]]
            # The name and the docstring of a struct are for us.
            plain = {name: value for name, value in found.items() if name not in ("title", "description")}
            return _inlined({**plain, **rest}, definitions)
        case {"enum": [*values], **rest} if "type" not in rest and all(isinstance(value, str) for value in values):
            return {"type": "string", "enum": values, **_inlined(rest, definitions)}
        case {**fields}:
            return {name: _inlined(value, definitions) for name, value in fields.items()}
        case [*items]:
            return [_inlined(item, definitions) for item in items]
        case _:
            return schema
