"""What an MCP server wants to know of a person, as questions that are stored and answered once (P14).

A form becomes one question for each field, an address one question that shows all of it: nothing opens it. An answer
that does not fit its field is asked for again. Without a person everything is declined.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from datetime import date, datetime
from typing import Any, NamedTuple, cast

from kedge.jsonrpc.messages import Json
from kedge.mcp.messages import InputRequest
from kedge.protocol.requests import Answer
from kedge.protocol.text_safety import visible
from kedge.tools.errors import ToolError

MAX_FIELDS = 20
MAX_OPTIONS = 50
MAX_MESSAGE_CHARS = 4_000
MAX_TEXT_CHARS = 500
MAX_TRIES = 5  # for an answer that fits
DECLINE: Json = {"action": "decline"}

Ask = Callable[[list[dict[str, Any]]], Awaitable[Answer]]


class _Field(NamedTuple):
    name: str
    schema: Mapping[str, Any]
    is_required: bool
    options: Mapping[str, Any]  # values by the text that people choose


class _DoesNotFit(Exception):
    """Why an answer is not taken."""


async def answer_input(server: str, label: str, request: InputRequest, ask: Ask | None) -> Json:
    """Return the answer to a request of a server. `ask` is None if nobody can be asked.

    `label` tells one request of a call from the next. Raises `ToolError` for a request that Kedge does not offer.
    """
    if request.method != "elicitation/create":
        raise ToolError(f"The MCP server {server} asks for {request.method[:60]!r}, which Kedge does not offer.")
    if ask is None:
        return DECLINE
    params = request.params
    message = _shorten(params.get("message"), MAX_MESSAGE_CHARS)
    source = {"server": server, "round": label}
    if params.get("mode") == "url":
        return await _ask_about_address(server, message, params.get("url"), source, ask)
    return await _ask_form(server, message, params.get("requestedSchema"), source, ask)


async def _ask_about_address(server: str, message: str, url: object, source: Json, ask: Ask) -> Json:
    if not isinstance(url, str) or not re.match(r"https?://", url):
        return DECLINE
    text = (
        f"The MCP server {server} wants you to open an address: {message}\n\n{visible(url)}\n\n"
        "Open it yourself if you trust it, and answer yes when you are done there. No declines."
    )
    answer = await ask([{"question": text, "kind": "yes_no", "options": [], **source}])
    if answer.action != "answer":
        return {"action": "cancel"}
    return {"action": "accept"} if _is_yes(_first(answer)) else DECLINE


async def _ask_form(server: str, message: str, schema: object, source: Json, ask: Ask) -> Json:
    fields = _list_fields(schema)
    intro = f"The MCP server {server} asks: {message}"
    if not fields:
        answer = await ask([{"question": intro, "kind": "yes_no", "options": [], **source}])
        if answer.action != "answer":
            return {"action": "cancel"}
        return {"action": "accept", "content": {}} if _is_yes(_first(answer)) else DECLINE
    content: Json = {}
    due, problems = fields, dict[str, str]()
    for attempt in range(MAX_TRIES):
        questions = [
            _make_question(field, intro if index == 0 else "", problems.get(field.name), {**source, "attempt": attempt})
            for index, field in enumerate(due)
        ]
        answer = await ask(questions)
        if answer.action != "answer":
            return {"action": "cancel"}
        problems = {}
        for field, given in zip(due, answer.answers or (), strict=False):
            try:
                value = _read_answer(field, given)
            except _DoesNotFit as problem:
                problems[field.name] = str(problem)
            else:
                if value is not None:
                    content[field.name] = value
        due = [field for field in due if field.name in problems]
        if not due:
            return {"action": "accept", "content": content}
    return {"action": "cancel"}


def _list_fields(schema: object) -> list[_Field]:
    if not isinstance(schema, dict):
        return []
    form = cast("Json", schema)
    properties, required = form.get("properties"), form.get("required")
    if not isinstance(properties, dict):
        return []
    names = cast("list[Any]", required) if isinstance(required, list) else []
    return [
        _Field(name, cast("Json", each), name in names, _list_options(cast("Json", each)))
        for name, each in list(cast("Json", properties).items())[:MAX_FIELDS]
        if isinstance(each, dict)
    ]


def _list_options(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values to choose from, by title; empty if any value will do."""
    inner = schema.get("items") if schema.get("type") == "array" else schema
    match inner:
        case {"enum": [*values]}:
            titles = cast("Json", inner).get("enumNames")
            names = cast("list[Any]", titles) if isinstance(titles, list) else []
            found = {str(name): value for name, value in zip([*names, *values[len(names) :]], values, strict=False)}
        case {"oneOf": [*each]} | {"anyOf": [*each]}:
            options = [cast("Json", option) for option in each if isinstance(option, dict) and "const" in option]
            found = {str(option.get("title") or option["const"]): option["const"] for option in options}
        case _:
            found = {}
    return dict(list(found.items())[:MAX_OPTIONS])


def _make_question(field: _Field, intro: str, problem: str | None, source: Json) -> dict[str, Any]:
    schema = field.schema
    title = _shorten(schema.get("title") or field.name, MAX_TEXT_CHARS)
    facts = [_shorten(schema.get("description"), MAX_TEXT_CHARS)]
    if "default" in schema and schema.get("type") != "boolean":
        facts.append(f"without an answer: {_shorten(_show_default(field), MAX_TEXT_CHARS)}")
    elif not field.is_required:
        facts.append("may be left empty")
    about = "; ".join(fact for fact in facts if fact)
    line = f"{title} ({about})" if about else title
    text = "\n\n".join(part for part in (intro, f"{line}\n{problem}" if problem else line) if part)
    kind = "yes_no" if schema.get("type") == "boolean" else "text"
    if field.options:
        kind = "many" if schema.get("type") == "array" else "one"
    return {"question": text, "kind": kind, "options": [visible(option) for option in field.options], **source}


def _show_default(field: _Field) -> str:
    default = field.schema.get("default")
    values = cast("list[Any]", default) if isinstance(default, list) else [default]
    titles = {repr(value): title for title, value in field.options.items()}
    return ", ".join(titles.get(repr(value), str(value)) for value in values)


def _read_answer(field: _Field, given: Any) -> Any:
    """Return the value of a field, None for a field that stays empty. Raises `_DoesNotFit`."""
    schema = field.schema
    kind = schema.get("type")
    if given is None or given in ("", []):
        if "default" in schema:
            return schema["default"]
        if field.is_required:
            raise _DoesNotFit("An answer is needed here.")
        return None
    if kind == "boolean":
        return _read_yes_or_no(given)
    if kind == "array":
        return _read_choices(field, cast("list[Any]", given) if isinstance(given, list) else [given])
    if field.options:
        return _read_choice(field, given)
    text = str(given).strip()
    return _read_number(schema, text) if kind in ("number", "integer") else _check_text(schema, text)


def _read_yes_or_no(given: Any) -> bool:
    if isinstance(given, bool):
        return given
    match str(given).strip().lower():
        case "yes" | "y" | "true":
            return True
        case "no" | "n" | "false":
            return False
        case _:
            raise _DoesNotFit("Answer yes or no.")


def _read_choices(field: _Field, given: list[Any]) -> list[Any]:
    chosen = [_read_choice(field, each) for each in given]
    least, most = field.schema.get("minItems"), field.schema.get("maxItems")
    if isinstance(least, int) and len(chosen) < least:
        raise _DoesNotFit(f"Choose at least {least}.")
    if isinstance(most, int) and len(chosen) > most:
        raise _DoesNotFit(f"Choose at most {most}.")
    return chosen


def _read_choice(field: _Field, given: Any) -> Any:
    if not field.options:
        return given
    for title, value in field.options.items():
        if given in (visible(title), title, value):
            return value
    raise _DoesNotFit("Choose one of the options.")


def _read_number(schema: Mapping[str, Any], text: str) -> int | float:
    try:
        value = int(text) if schema.get("type") == "integer" else float(text)
    except ValueError:
        raise _DoesNotFit("This must be a number.") from None
    least, most = schema.get("minimum"), schema.get("maximum")
    if isinstance(least, int | float) and value < least:
        raise _DoesNotFit(f"This must be at least {least:g}.")
    if isinstance(most, int | float) and value > most:
        raise _DoesNotFit(f"This must be at most {most:g}.")
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _check_text(schema: Mapping[str, Any], text: str) -> str:
    least, most = schema.get("minLength"), schema.get("maxLength")
    if isinstance(least, int) and len(text) < least:
        raise _DoesNotFit(f"This must have at least {least} characters.")
    if isinstance(most, int) and len(text) > most:
        raise _DoesNotFit(f"This must have at most {most} characters.")
    try:
        match schema.get("format"):
            case "email" if not re.fullmatch(r"[^@\s]+@[^@\s]+", text):
                raise _DoesNotFit("This must be an email address.")
            case "uri" if not re.match(r"[A-Za-z][A-Za-z0-9+.-]*:", text):
                raise _DoesNotFit("This must be an address, like https://example.com.")
            case "date":
                date.fromisoformat(text)
            case "date-time":
                datetime.fromisoformat(text)
            case _:
                pass
    except ValueError:
        raise _DoesNotFit("This must be a date, like 2026-07-28.") from None
    return text


def _first(answer: Answer) -> Any:
    return answer.answers[0] if answer.answers else None


def _is_yes(given: Any) -> bool:
    return given is True or (isinstance(given, str) and given.strip().lower() in ("yes", "y", "true"))


def _shorten(text: object, max_chars: int) -> str:
    plain = visible(text) if isinstance(text, str) else ""
    return plain if len(plain) <= max_chars else f"{plain[: max_chars - 1]}…"
