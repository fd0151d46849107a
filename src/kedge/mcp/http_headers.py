"""Headers of MCP over HTTP that repeat parts of a request's body. Pure.

Servers and proxies read them instead of the body: `Mcp-Method`, `Mcp-Name`, and `Mcp-Param-NAME` for parameters of
tools whose schema has `x-mcp-header`.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, cast

from kedge.jsonrpc.messages import Json
from kedge.mcp.messages import ToolInfo

EXTENSION = "x-mcp-header"
MAX_DEPTH = 32  # of a schema that is searched
_TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_PLAIN = re.compile(r"[!-~](?:[ -~]*[!-~])?|")
_BASE64 = re.compile(r"=\?base64\?.*\?=", re.DOTALL)
_TYPES = frozenset({"string", "integer", "boolean"})
_NAMES = {
    "tools/call": "name",
    "prompts/get": "name",
    "resources/read": "uri",
    "tasks/get": "taskId",
    "tasks/update": "taskId",
    "tasks/cancel": "taskId",
}


class HeaderParam(NamedTuple):
    """A parameter of a tool that is also sent as a header."""

    path: tuple[str, ...]
    name: str


class InvalidSchema(Exception):
    """Why a tool cannot be called: one line."""


def list_request_headers(method: str, params: Json) -> dict[str, str]:
    """Return `Mcp-Method`, and `Mcp-Name` if the method has one."""
    headers = {"Mcp-Method": method}
    name = params.get(_NAMES.get(method, ""))
    if isinstance(name, str):
        headers["Mcp-Name"] = encode_value(name)
    return headers


def list_param_headers(params: Sequence[HeaderParam], arguments: Any) -> dict[str, str]:
    """Return the `Mcp-Param-NAME` headers of a call with these arguments."""
    headers: dict[str, str] = {}
    for param in params:
        value: Any = arguments
        for name in param.path:
            value = cast("dict[str, Any]", value).get(name) if isinstance(value, dict) else None
        match value:
            case bool():
                headers[f"Mcp-Param-{param.name}"] = "true" if value else "false"
            case int():
                headers[f"Mcp-Param-{param.name}"] = str(value)
            case float() if value.is_integer():
                headers[f"Mcp-Param-{param.name}"] = str(int(value))
            case str():
                headers[f"Mcp-Param-{param.name}"] = encode_value(value)
            case _:
                pass
    return headers


def encode_value(text: str) -> str:
    """Return a text as the value of a header: as it is, or in base64 if a header could not have it."""
    if _PLAIN.fullmatch(text) and not _BASE64.fullmatch(text):
        return text
    return f"=?base64?{b64encode(text.encode(errors='replace')).decode()}?="


def find_header_params(tool: ToolInfo) -> list[HeaderParam]:
    """Return the parameters that are also sent as headers. Raises `InvalidSchema`."""
    found: list[HeaderParam] = []
    for path, is_reachable, schema in _walk(tool.input_schema, (), MAX_DEPTH, is_reachable=True):
        name = schema[EXTENSION]
        if not is_reachable or not path:
            raise InvalidSchema(f"{EXTENSION} is not at a property that every call can have")
        if not isinstance(name, str) or not _TOKEN.fullmatch(name):
            raise InvalidSchema(f"{EXTENSION} is not the name of a header")
        if schema.get("type") not in _TYPES:
            raise InvalidSchema(f"{EXTENSION} is at a parameter that is no string, integer or boolean")
        found.append(HeaderParam(path, name))
    if len({param.name.lower() for param in found}) != len(found):
        raise InvalidSchema(f"two parameters have the same {EXTENSION}")
    return found


def _walk(
    schema: Any, path: tuple[str, ...], depth: int, *, is_reachable: bool
) -> Iterator[tuple[tuple[str, ...], bool, Mapping[str, Any]]]:
    """Yield each schema with the extension, its path, and whether only `properties` lead to it."""
    if depth == 0:
        return
    if isinstance(schema, list):
        for each in cast("list[Any]", schema):
            yield from _walk(each, path, depth - 1, is_reachable=False)
        return
    if not isinstance(schema, dict):
        return
    fields = cast("dict[str, Any]", schema)
    if EXTENSION in fields:
        yield path, is_reachable, fields
    for name, each in fields.items():
        if name == "properties" and isinstance(each, dict):
            for inner, schema_of in cast("dict[str, Any]", each).items():
                yield from _walk(schema_of, (*path, inner), depth - 1, is_reachable=is_reachable)
        elif name not in ("default", "examples", "enum", "const", EXTENSION):  # values, not schemas
            yield from _walk(each, path, depth - 1, is_reachable=False)
