"""An answer that must be JSON of a given shape (`--output-schema`): told, checked, and asked for again when it is not.

A correction is asked for in the request alone: nobody said it, so it is no message of the conversation. It is made anew
from the history each time, so that a restart asks for the same (P13).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from kedge.engine.errors import TurnFailed
from kedge.protocol.messages import Message, Text, ToolCall, text_of

if TYPE_CHECKING:
    from jsonschema_rs import Validator

MAX_CORRECTIONS = 2  # a model that cannot do it in three tries will not do it in ten
_MAX_PROBLEM = 1_000  # characters of what is wrong


class OutputSchema:
    def __init__(self, schema: Mapping[str, Any]) -> None:
        self._validator = _validator(schema)
        self.told = msgspec.json.encode(schema).decode()

    def problem(self, text: str) -> str | None:
        """What is wrong with an answer; None: nothing."""
        try:
            value = msgspec.json.decode(text)
        except (msgspec.DecodeError, UnicodeError) as error:
            fenced = " Send the bare JSON, without a code fence." if "```" in text else ""
            return f"it is not valid JSON ({error}).{fenced}"
        error = next(self._validator.iter_errors(value), None)
        if error is None:
            return None
        where = "".join(f"[{step!r}]" for step in error.instance_path)
        return f"the schema does not accept it: {error.message}{f' at {where}' if where else ''}"[:_MAX_PROBLEM]

    def with_corrections(self, history: Sequence[Message], run_id: str) -> list[Message]:
        """The history with a word after each answer of this run that was not accepted."""
        told: list[Message] = []
        for message in history:
            told.append(message)
            if is_answer(message, run_id) and (problem := self.problem(text_of(message.parts))) is not None:
                words = f"Your answer was not accepted: {problem}\nAnswer again, with nothing but the JSON."
                told.append(msgspec.structs.replace(message, role="user", parts=[Text(words)], model=None))
        return told

    def check(self, history: Sequence[Message], run_id: str) -> bool:
        """Whether the last answer is accepted; raises when there were enough tries since the last prompt."""
        problems: list[str] = []  # the last answer's first
        for message in reversed(history):
            if message.role == "user":
                break
            if not is_answer(message, run_id):
                continue
            problem = self.problem(text_of(message.parts))
            if problem is None:
                return not problems
            problems.append(problem)
            if len(problems) > MAX_CORRECTIONS:
                raise TurnFailed(f"the answer does not fit --output-schema: {problems[0]}", "output_schema")
        return False


def is_answer(message: Message, run_id: str) -> bool:
    """Whether a message is a step of this run that called no tool."""
    if message.role != "assistant" or message.run_id != run_id or message.summary:
        return False
    return not any(isinstance(part, ToolCall) for part in message.parts)


def _validator(schema: Mapping[str, Any]) -> Validator:
    import jsonschema_rs  # takes a while to load, and few runs need it

    try:
        return jsonschema_rs.validator_for(dict(schema), retriever=_retrieve_nothing)
    except ValueError as error:
        why = str(error).partition("\n")[0]
        raise TurnFailed(f"--output-schema is no valid JSON schema: {why}", "bad_config") from error


def _retrieve_nothing(uri: str) -> Any:
    """A schema stands for itself: nothing is fetched for it."""
    raise ValueError(f"it refers to {uri}, and only references within the schema are followed")
