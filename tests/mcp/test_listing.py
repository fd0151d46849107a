"""Names and schemas of tools that every provider takes, whatever a server sends."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from kedge.config.schema import McpToolsConfig
from kedge.mcp.listing import MAX_SCHEMA_BYTES, OfferedTool, clean_schema, offer_tools
from kedge.mcp.messages import ToolInfo


def offer(choice: McpToolsConfig | None = None, **tools: list[str]) -> dict[str, OfferedTool]:
    servers = {server: [ToolInfo(name=name) for name in names] for server, names in tools.items()}
    return offer_tools(servers, dict.fromkeys(servers, choice or McpToolsConfig()))


def test_names_are_unique_possible_and_the_same_in_any_order() -> None:
    odd = ["a.b", "a_b", "a b", "getUser", "x" * 100, "x" * 101, "ü"]
    offered = offer(s=odd, s_a=["b"])
    assert len(offered) == len(odd) + 1
    assert all(re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", name) for name in offered)
    assert offered["mcp_s_a_b"].tool == "a_b"  # the one that needs no change keeps its name
    assert offered["mcp_s_getUser"].tool == "getUser"
    assert offer(s_a=["b"], s=odd[::-1]).keys() == offered.keys()
    assert list(offered) == sorted(offered)


def test_the_configuration_chooses_tools_and_a_denial_wins() -> None:
    choice = McpToolsConfig(allow=("get_*", "put"), deny=("*_secret*",))
    assert list(offer(choice, s=["get_a", "get_secrets", "put", "put_b"])) == ["mcp_s_get_a", "mcp_s_put"]


def test_a_schema_has_no_references_and_none_is_followed_to_another_document() -> None:
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "properties": {
            "a": {"$ref": "#/$defs/size", "description": "its own"},
            "tree": {"$ref": "#/$defs/node"},
            "away": {"$ref": "https://example.com/schema.json", "description": "elsewhere"},
            "region": {"type": "string", "x-mcp-header": "Region"},
        },
        "$defs": {
            "size": {"type": "integer", "minimum": 1},
            "node": {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}},
        },
    }
    plain = clean_schema(schema)
    text = msgspec.json.encode(plain).decode()
    assert not re.search(r"\$ref|\$defs|\$schema|x-mcp-header", text)
    assert plain["properties"]["a"] == {"type": "integer", "minimum": 1, "description": "its own"}
    assert plain["properties"]["tree"]["properties"] == {"next": {}}
    assert plain["properties"]["away"] == {"description": "elsewhere"}


def test_the_top_of_a_schema_is_an_object_with_properties() -> None:
    one = {"properties": {"a": {"type": "string"}}, "required": ["a"]}
    other = {"properties": {"b": {"type": "string"}}, "required": ["b"]}
    assert clean_schema({"allOf": [one, other]})["required"] == ["a", "b"]
    either = clean_schema({"anyOf": [one, other]})
    assert either["properties"].keys() == {"a", "b"}
    assert "required" not in either
    odd_ones: list[Any] = [None, [], "x", {"type": "array"}, {"properties": 3}, {"allOf": 7, "required": "a"}]
    for odd in odd_ones:
        assert clean_schema(odd)["type"] == "object"


def test_a_huge_or_deep_schema_becomes_a_small_one() -> None:
    deep: dict[str, Any] = {}
    for _ in range(5_000):
        deep = {"type": "array", "items": deep}
    bomb: dict[str, Any] = {"properties": {"x": {"$ref": "#/$defs/n9"}}, "$defs": {"n0": {"type": "string"}}}
    bomb["$defs"] |= {f"n{i}": {"anyOf": [{"$ref": f"#/$defs/n{i - 1}"}] * 10} for i in range(1, 10)}
    for schema in ({"properties": {"x": deep}}, bomb, {"properties": {"x": {"description": "y" * 100_000}}}):
        plain = clean_schema(schema)
        assert plain["properties"].keys() == {"x"}
        assert len(msgspec.json.encode(plain)) <= MAX_SCHEMA_BYTES
