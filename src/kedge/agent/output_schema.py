"""A schema that answers must match (`--output-schema`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from kedge.engine.errors import TurnFailed
from kedge.protocol.messages import Message, Text, ToolCall, text_of

if TYPE_CHECKING:
    from jsonschema_rs import Validator

MAX_CORRECTIONS = 2  # a model that fails three times would fail ten times
_MAX_PROBLEM_CHARS = 1_000


class OutputSchema:
    """A schema that answers must match (`--output-schema`): stated in the system prompt, checked, and corrected.

    The request to correct an answer is not stored. It is derived from the history, so that it is the same after a
    restart (P13).
    """

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self._validator = _compile(schema)
        self.text = msgspec.json.encode(schema).decode()

    def find_problem(self, text: str) -> str | None:
        """Return the error of an answer that does not fit the schema, or None."""
        try:
            value = msgspec.json.decode(text)
        except (msgspec.DecodeError, UnicodeError) as error:
            fenced = " Send the bare JSON, without a code fence." if "```" in text else ""
            return f"it is not valid JSON ({error}).{fenced}"
        error = next(self._validator.iter_errors(value), None)
        if error is None:
            return None
        where = "".join(f"[{step!r}]" for step in error.instance_path)
        return f"the schema does not accept it: {error.message}{f' at {where}' if where else ''}"[:_MAX_PROBLEM_CHARS]

    def add_corrections(self, history: Sequence[Message], run_id: str) -> list[Message]:
        """Return the history with a correction after each answer of this run that does not fit."""
        messages: list[Message] = []
        for message in history:
            messages.append(message)
            if is_answer(message, run_id) and (problem := self.find_problem(text_of(message.parts))) is not None:
                text = f"Your answer was not accepted: {problem}\nAnswer again, with nothing but the JSON."
                messages.append(msgspec.structs.replace(message, role="user", parts=[Text(text)], model=None))
        return messages

    def check_answer(self, history: Sequence[Message], run_id: str) -> bool:
        """Return whether the last answer fits; raise `TurnFailed` after too many attempts since the last prompt."""
        problems: list[str] = []  # of the last answer first
        for message in reversed(history):
            if message.role == "user":
                break
            if not is_answer(message, run_id):
                continue
            problem = self.find_problem(text_of(message.parts))
            if problem is None:
                return not problems
            problems.append(problem)
            if len(problems) > MAX_CORRECTIONS:
                raise TurnFailed(f"The answer does not match --output-schema: {problems[0]}", "output_schema")
        return False


def is_answer(message: Message, run_id: str) -> bool:
    """Return whether a message is a step of this run without tool calls."""
    if message.role != "assistant" or message.run_id != run_id or message.summary:
        return False
    return not any(isinstance(part, ToolCall) for part in message.parts)


def _compile(schema: Mapping[str, Any]) -> Validator:
    import jsonschema_rs  # slow to import, and few runs need it

    try:
        return jsonschema_rs.validator_for(dict(schema), retriever=_refuse_reference)
    except ValueError as error:
        reason = str(error).partition("\n")[0]
        raise TurnFailed(f"--output-schema is not a valid JSON schema: {reason}", "bad_config") from error


def _refuse_reference(uri: str) -> Any:
    raise ValueError(f"it refers to {uri}, and only references within the schema are followed")
