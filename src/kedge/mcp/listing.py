"""Tools of servers as a model gets them: names that every provider takes, bounded descriptions, self-contained schemas.

No IO: a reference to another document is never followed.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

import msgspec

from kedge.config.schema import McpToolsConfig
from kedge.jsonrpc.messages import Json
from kedge.mcp.messages import ToolInfo

MAX_NAME_CHARS = 64  # of OpenAI and Anthropic
MAX_DESCRIPTION_CHARS = 2_048
MAX_SCHEMA_BYTES = 32 * 1024
_MAX_DEPTH = 24
_MAX_NODES = 4_000  # after references were replaced by what they refer to
_HASH_CHARS = 8
# Of schemas, but not for a model; `x-mcp-header` is for transports.
_DROPPED = frozenset(
    {"$schema", "$id", "$anchor", "$dynamicAnchor", "$comment", "$defs", "definitions", "x-mcp-header"}
)
# Providers take them below the top level only.
_NOT_AT_THE_TOP = ("anyOf", "oneOf", "allOf", "not", "enum", "const", "if", "then", "else", "$ref", "$dynamicRef")
_NAMED_SCHEMAS = ("properties", "patternProperties", "dependentSchemas")


class OfferedTool(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    name: str  # for the model and for permission rules
    server: str
    tool: str  # as the server names it
    description: str
    input_schema: Json
    title: str | None = None
    says_read_only: bool = False  # a claim of the server, which decides no permission


def offer_tools(
    servers: Mapping[str, Sequence[ToolInfo]], choices: Mapping[str, McpToolsConfig]
) -> dict[str, OfferedTool]:
    """Return the tools of all servers that the configuration lets through, by name, sorted."""
    chosen = [
        (server, info)
        for server in sorted(servers)
        for info in sorted(servers[server], key=lambda info: info.name)
        if is_chosen(info.name, choices[server])
    ]
    offered: dict[str, OfferedTool] = {}
    for is_exact in (True, False):  # a name that needs no change is not taken by one that does
        for server, info in chosen:
            name = f"mcp_{server}_{info.name}"
            if _is_possible(name) == is_exact:
                unique = make_name(server, info.name, offered)
                offered.setdefault(unique, _offer(unique, server, info))
    return dict(sorted(offered.items()))


def is_chosen(tool: str, choice: McpToolsConfig) -> bool:
    return any(_matches(pattern, tool) for pattern in choice.allow) and not any(
        _matches(pattern, tool) for pattern in choice.deny
    )


def make_name(server: str, tool: str, taken: Iterable[str] = ()) -> str:
    """Return `mcp_SERVER_TOOL` in the characters and the length that providers take."""
    plain = re.sub(r"[^a-zA-Z0-9_-]", "_", f"mcp_{server}_{tool}")
    if len(plain) <= MAX_NAME_CHARS and plain not in taken:
        return plain
    digest = hashlib.sha256(f"{server}\0{tool}".encode()).hexdigest()[:_HASH_CHARS]
    return f"{plain[: MAX_NAME_CHARS - _HASH_CHARS - 1]}_{digest}"


def clean_schema(schema: Any) -> Json:
    """Return an input schema without references, as an object at the top: what every provider takes."""
    if not isinstance(schema, dict):
        return {"type": "object"}
    given = cast("Json", schema)
    try:
        plain = _Cleaner(given).clean_top()
        if len(msgspec.json.encode(plain)) <= MAX_SCHEMA_BYTES:
            return plain
    except (_TooLarge, RecursionError, msgspec.MsgspecError, UnicodeError):
        pass
    return {"type": "object", "properties": {name: {} for name in list(_get_object(given, "properties"))[:100]}}


class _TooLarge(Exception):
    pass


class _Cleaner:
    def __init__(self, root: Json) -> None:
        self._root = root
        self._nodes = 0

    def clean_top(self) -> Json:
        top = self._follow(self._root, ())[0]
        for kind in ("allOf", "anyOf", "oneOf"):
            for each in _get_list(top, kind):
                if isinstance(each, dict):
                    part = self._follow(cast("Json", each), ())[0]
                    # One option of several is chosen: nothing in it is required.
                    top = _join_objects(top, part if kind == "allOf" else {**part, "required": []})
        plain = self._clean({name: each for name, each in top.items() if name not in _NOT_AT_THE_TOP}, ())
        plain["type"] = "object"
        if not isinstance(plain.get("properties"), dict):
            plain["properties"] = {}
        return plain

    def _follow(self, schema: Json, path: tuple[str, ...]) -> tuple[Json, tuple[str, ...]]:
        """Replace a reference within the schema by its target; one that leads elsewhere, or in a circle, by nothing."""
        ref = schema.get("$ref")
        if not isinstance(ref, str):
            return schema, path
        rest = {name: each for name, each in schema.items() if name != "$ref"}
        target = self._find(ref)
        if target is None or ref in path:
            return rest, path
        followed, inner = self._follow(target, (*path, ref))
        return {**followed, **rest}, inner

    def _find(self, ref: str) -> Json | None:
        if not ref.startswith("#/") and ref != "#":
            return None
        node: Any = self._root
        for part in ref[2:].split("/") if len(ref) > 2 else ():
            name = part.replace("~1", "/").replace("~0", "~")
            match node:
                case {**fields} if name in fields:
                    node = fields[name]
                case [*items] if name.isdecimal() and int(name) < len(items):
                    node = items[int(name)]
                case _:
                    return None
        return cast("Json", node) if isinstance(node, dict) else None

    def _clean(self, schema: Json, path: tuple[str, ...]) -> Json:
        self._nodes += 1
        if self._nodes > _MAX_NODES or len(path) > _MAX_DEPTH:
            raise _TooLarge
        schema, path = self._follow(schema, path)
        plain: Json = {}
        for name, value in schema.items():
            if name in _DROPPED or name == "$dynamicRef":
                continue
            if name in _NAMED_SCHEMAS and isinstance(value, dict):
                plain[name] = {key: self._clean_value(each, path) for key, each in cast("Json", value).items()}
            elif name in ("default", "examples", "enum", "const"):
                plain[name] = value
            else:
                plain[name] = self._clean_value(value, path)
        return plain

    def _clean_value(self, value: Any, path: tuple[str, ...]) -> Any:
        match value:
            case {**fields}:
                return self._clean(cast("Json", fields), path)
            case [*items]:
                return [self._clean_value(item, path) for item in items]
            case _:
                return value


def _join_objects(one: Json, other: Json) -> Json:
    joined = {**one, "properties": {**_get_object(other, "properties"), **_get_object(one, "properties")}}
    if names := list(dict.fromkeys(map(str, [*_get_list(one, "required"), *_get_list(other, "required")]))):
        joined["required"] = names
    return joined


def _get_object(schema: Json, name: str) -> Json:
    found = schema.get(name)
    return cast("Json", found) if isinstance(found, dict) else {}


def _get_list(schema: Json, name: str) -> list[Any]:
    found = schema.get(name)
    return cast("list[Any]", found) if isinstance(found, list) else []


def _offer(name: str, server: str, info: ToolInfo) -> OfferedTool:
    text = (info.description or info.title or "").strip()
    if len(text) > MAX_DESCRIPTION_CHARS:
        text = f"{text[: MAX_DESCRIPTION_CHARS - 1]}…"
    return OfferedTool(
        name=name,
        server=server,
        tool=info.name,
        title=info.title,
        description=text,
        input_schema=clean_schema(info.input_schema),
        says_read_only=(info.annotations or {}).get("readOnlyHint") is True,
    )


def _is_possible(name: str) -> bool:
    return len(name) <= MAX_NAME_CHARS and re.fullmatch(r"[a-zA-Z0-9_-]+", name) is not None


def _matches(pattern: str, name: str) -> bool:
    """`*` stands for any text. In linear time, whatever the pattern."""
    first, *rest = pattern.split("*")
    if not rest:
        return name == pattern
    *middle, last = rest
    if not (name.startswith(first) and name.endswith(last) and len(name) >= len(first) + len(last)):
        return False
    at, end = len(first), len(name) - len(last)
    for piece in middle:
        found = name.find(piece, at, end)
        if found < 0:
            return False
        at = found + len(piece)
    return True
