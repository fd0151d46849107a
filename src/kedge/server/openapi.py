"""The OpenAPI 3.1 document, derived from the routes and the structs that they decode and encode.

Schemas have short, stable names, and a form that client generators accept.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, get_args

import msgspec

from kedge.protocol.errors import ErrorBody
from kedge.protocol.messages import Message, Part
from kedge.server.http import Route
from kedge.version import VERSION

_REF = "#/components/schemas/"
_ERROR_DESCRIPTIONS = {
    400: "malformed",
    401: "no token, or a wrong one (TCP only)",
    403: "refused Host or Origin (TCP only), or a change requested by a command of the agent",
    404: "not found",
    405: "method not allowed",
    409: "conflict",
    413: "too large",
    415: "not JSON",
    422: "well-formed but invalid",
    429: "too many",
    500: "internal error",
    503: "stopping, or the store is not available; see Retry-After",
}


def document(routes: Iterable[Route]) -> bytes:
    """Return the document as it is served, and as it stands in docs/openapi.json."""
    return msgspec.json.format(msgspec.json.encode(describe(routes)), indent=2) + b"\n"


def describe(routes: Iterable[Route]) -> dict[str, Any]:
    routes = list(routes)
    types = [t for route in routes for t in (route.answer, route.body, route.query) if t is not None and t is not str]
    types += [ErrorBody, Message]
    schemas, components = msgspec.json.schema_components(types, ref_template=_REF + "{name}")
    by_type = dict(zip(map(repr, types), schemas, strict=True))
    names = {cls.__name__: f"{cls.__name__}Part" for cls in get_args(Part)}
    names[by_type[repr(Message)]["$ref"].removeprefix(_REF)] = "Message"
    queries = {route.query.__name__: components.pop(route.query.__name__) for route in routes if route.query}
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        query: dict[str, Any] = queries[route.query.__name__] if route.query else {}
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, by_type, query)
    described: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {
            "title": "Kedge",
            "version": VERSION,
            "description": "Durable runs of an AI coding agent. docs/contract.md has the guarantees behind the routes.",
        },
        "paths": paths,
        "components": {
            "schemas": {
                names.get(name, name): {**schema, "title": names.get(name, name)} for name, schema in components.items()
            },
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer", "description": "required over TCP"}},
        },
        "security": [{"token": []}, {}],
    }
    return _normalize(described, names)


def _normalize(node: Any, names: dict[str, str]) -> Any:
    """Return `node` with short schema names, and with the types of items and enums that generators need."""
    match node:
        case str() if node.startswith(_REF):
            name = node.removeprefix(_REF)
            return _REF + names.get(name, name)
        case {"type": "array", **rest} if "items" not in rest and "prefixItems" not in rest:
            return {**node, "items": {}}
        case {"enum": [str(value)], **rest}:
            return {"type": "string", "const": value, **rest}
        case {"enum": [*values], **rest} if "type" not in rest and all(isinstance(value, str) for value in values):
            return {"type": "string", **node}
        case {**fields}:
            return {key: _normalize(value, names) for key, value in fields.items()}
        case [*items]:
            return [_normalize(item, names) for item in items]
        case _:
            return node


def _operation(route: Route, by_type: dict[str, Any], query: dict[str, Any]) -> dict[str, Any]:
    answer = {"type": "string"} if route.answer is str else by_type[repr(route.answer)]
    operation: dict[str, Any] = {
        "operationId": route.name,
        "tags": [route.tag],
        "summary": route.summary,
        "responses": {
            str(route.status): {"description": "success", "content": {route.media_type: {"schema": answer}}},
            **{str(status): _error_response(status, by_type) for status in sorted(_error_statuses(route))},
        },
    }
    if parameters := [*_path_parameters(route.path), *_query_parameters(query)]:
        operation["parameters"] = parameters
    if route.body is not None:
        content = {"application/json": {"schema": by_type[repr(route.body)]}}
        operation["requestBody"] = {"required": True, "content": content}
    return operation


def _error_statuses(route: Route) -> set[int]:
    statuses = {401, 403, 405, 500, 503, *route.errors}
    if "{" in route.path:
        statuses.add(404)
    if route.query is not None:
        statuses.add(422)
    if route.body is not None:
        statuses |= {400, 413, 415, 422}
    return statuses


def _error_response(status: int, by_type: dict[str, Any]) -> dict[str, Any]:
    return {
        "description": _ERROR_DESCRIPTIONS[status],
        "content": {"application/json": {"schema": by_type[repr(ErrorBody)]}},
    }


def _path_parameters(path: str) -> list[dict[str, Any]]:
    return [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
        for name in re.findall(r"{(\w+)}", path)
    ]


def _query_parameters(query: dict[str, Any]) -> list[dict[str, Any]]:
    required: list[str] = query.get("required", [])
    return [
        {"name": name, "in": "query", "required": name in required, "schema": schema}
        for name, schema in query.get("properties", {}).items()
    ]


if __name__ == "__main__":
    import sys

    from kedge.server.routes import ROUTES

    sys.stdout.buffer.write(document(ROUTES))
