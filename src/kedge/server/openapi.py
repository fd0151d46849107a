"""The OpenAPI 3.1 document, made from the route table and the structs that the routes decode and encode."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import msgspec

from kedge.protocol.errors import ErrorBody
from kedge.server.http import Operation
from kedge.version import VERSION

_REASONS = {
    400: "malformed",
    401: "no token, or a wrong one (TCP only)",
    403: "refused Host or Origin (TCP only), or a change asked for by a command of the agent",
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


def document(operations: Iterable[Operation]) -> bytes:
    """The document as it is served, and as it stands in docs/openapi.json."""
    return msgspec.json.format(msgspec.json.encode(described(operations)), indent=2) + b"\n"


def described(operations: Iterable[Operation]) -> dict[str, Any]:
    rows = list(operations)
    types = [t for row in rows for t in (row.answer, row.body, row.query) if t is not None and t is not str]
    schemas, components = msgspec.json.schema_components(
        [*types, ErrorBody], ref_template="#/components/schemas/{name}"
    )
    by_type = dict(zip(map(repr, [*types, ErrorBody]), schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for row in rows:
        paths.setdefault(row.path, {})[row.method.lower()] = _operation(row, by_type, components)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Kedge",
            "version": VERSION,
            "description": "Durable runs of an AI coding agent. docs/contract.md holds the promises behind the routes.",
        },
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer", "description": "over TCP, always"}},
        },
        "security": [{"token": []}, {}],
    }


def _operation(row: Operation, by_type: dict[str, Any], components: dict[str, Any]) -> dict[str, Any]:
    answer = {"type": "string"} if row.answer is str else by_type[repr(row.answer)]
    described: dict[str, Any] = {
        "operationId": row.name,
        "summary": row.summary,
        "responses": {
            str(row.status): {"description": "as asked", "content": {row.media_type: {"schema": answer}}},
            **{str(status): _error(status, by_type) for status in sorted(_errors(row))},
        },
    }
    if parameters := [*_path_parameters(row.path), *_query_parameters(row, components)]:
        described["parameters"] = parameters
    if row.body is not None:
        content = {"application/json": {"schema": by_type[repr(row.body)]}}
        described["requestBody"] = {"required": True, "content": content}
    return described


def _errors(row: Operation) -> set[int]:
    found = {401, 403, 405, 500, 503, *row.errors}
    if "{" in row.path:
        found.add(404)
    if row.query is not None:
        found.add(422)
    if row.body is not None:
        found |= {400, 413, 415, 422}
    return found


def _error(status: int, by_type: dict[str, Any]) -> dict[str, Any]:
    return {
        "description": _REASONS[status],
        "content": {"application/json": {"schema": by_type[repr(ErrorBody)]}},
    }


def _path_parameters(path: str) -> list[dict[str, Any]]:
    return [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
        for name in re.findall(r"{(\w+)}", path)
    ]


def _query_parameters(row: Operation, components: dict[str, Any]) -> list[dict[str, Any]]:
    if row.query is None:
        return []
    schema: dict[str, Any] = components[row.query.__name__]
    required: list[str] = schema.get("required", [])
    return [
        {"name": name, "in": "query", "required": name in required, "schema": each}
        for name, each in schema["properties"].items()
    ]


if __name__ == "__main__":
    import sys

    from kedge.server.routes import OPERATIONS

    sys.stdout.buffer.write(document(OPERATIONS))
