"""The schema as others use it: a JSON schema for editors, the same as docs/config.schema.json."""

from __future__ import annotations

from typing import Any, cast

import msgspec

from kedge.config.schema import Config

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def json_schema() -> str:
    schema = {"$schema": DIALECT, "title": "Kedge configuration", **msgspec.json.schema(Config)}
    return msgspec.json.format(msgspec.json.encode(_without_null(schema)), indent=2).decode() + "\n"


def _without_null(schema: Any) -> Any:
    """TOML has no null: a key that is not set is not there."""
    match schema:
        case {"anyOf": [inner, {"type": "null"}], **rest}:
            rest = {name: value for name, value in rest.items() if (name, value) != ("default", None)}
            return {**rest, **_without_null(inner)}
        case dict():
            fields = cast("dict[str, Any]", schema)
            return {name: _without_null(value) for name, value in fields.items()}
        case list() | tuple():
            return [_without_null(each) for each in cast("list[Any]", schema)]
        case _:
            return schema
