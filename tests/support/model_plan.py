"""What the scripted model server does with a call: a `Plan`, whose fields a prompt can override.

    [[fake chunks=2000 delay_ms=1]]

in the last prompt changes the server's own plan for that call. Positions are counted in deltas that were sent before
them: `AT_ONCE` is before the first byte of the answer, 0 after its head, `NEVER` nowhere.

    [[fake tool_calls='[{"name": "bash", "input": {"command": "ls"}}]' text=done]]

lets the model call tools before it answers. A plan is the same on every wire.
"""

from __future__ import annotations

import dataclasses
import json
import re
import shlex
from collections.abc import Iterator, Mapping
from itertools import zip_longest
from typing import Any, NamedTuple, cast

NEVER = -2
AT_ONCE = -1

_DIRECTIVE = re.compile(r"\[\[fake\s+(.*?)\]\]", re.DOTALL)


@dataclasses.dataclass(frozen=True)
class PlannedCall:
    """`input` is any JSON, or text that is sent as it is."""

    name: str
    input: Any = dataclasses.field(default_factory=dict[str, Any])
    id: str = ""  # one is made where there is none

    @property
    def arguments(self) -> str:
        return self.input if isinstance(self.input, str) else json.dumps(self.input)


class Piece(NamedTuple):
    """A delta of a call's input."""

    call: int  # its place among the step's calls
    text: str


@dataclasses.dataclass(frozen=True)
class Plan:
    # the answer
    text: str = "FAKE-ANSWER-OK"
    reasoning: str = ""  # comes before the text
    signature: str = ""  # of the reasoning, where the wire has it
    redacted: str = ""  # reasoning that nobody may read, where the wire has it
    refusal: bool = False  # the text is one, where the wire tells it apart
    phase: str = ""  # of the text, where the wire has it
    echo: bool = False  # answer with the last user message
    chunks: int = 1  # that many deltas: "w0 ", "w1 ", … and the text
    piece: int = 0  # cut the text into deltas of that many characters
    units: bool = False  # cut it into UTF-16 units, through the middle of surrogate pairs
    size: int = 0  # repeat the text up to that many characters
    tool_calls: tuple[PlannedCall, ...] = ()  # come after the text
    rounds: int = 1  # of the server's own plan: the prompt's first steps that make the calls; 0: all of them
    input_piece: int = 0  # cut the calls' inputs into deltas of that many characters
    interleave: bool = False  # a delta of each call in turn
    call_style: str = ""  # of Chat's servers: "whole", "no_index", "no_id", "empty_id", "same_index"
    finish: str = ""  # in the words of Chat; none: "stop", or "tool_calls" where there are some
    usage: bool = True
    input_tokens: int = 10  # that came from no cache
    output_tokens: int = -1  # -1: the text's deltas
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0

    # its pace
    first_ms: float = 0.0
    delay_ms: float = 0.0
    gate: str = ""  # wait there until the gate is released
    gate_after: int = AT_ONCE

    # faults; with `times`, only for the first so many calls with the same last user message
    status: int = 0
    error: str = "planned"  # the code in the body of an error
    message: str = "planned failure"
    retry_after: str = ""
    drop_after: int = NEVER
    hang_after: int = NEVER
    malformed: str = ""  # see `malformed_frames` in model_wire.py
    times: int = 0

    # the bytes
    raw: bool = False  # characters as they are, instead of escapes
    crlf: bool = False
    comments: bool = False
    unknown: bool = False  # with events and fields that nobody has heard of
    split: int = 0  # write that many bytes at a time
    joined: bool = False  # write everything at once; there are no places then

    def changed(self, fields: Mapping[str, object]) -> Plan:
        """With these fields, from JSON or from a directive; an unknown one is a mistake of the test."""
        return dataclasses.replace(self, **{name: _cast(getattr(self, name), value) for name, value in fields.items()})

    def without_faults(self) -> Plan:
        return dataclasses.replace(self, status=0, drop_after=NEVER, hang_after=NEVER, malformed="")

    @property
    def reason(self) -> str:
        return self.finish or ("tool_calls" if self.tool_calls else "stop")

    @property
    def output_count(self) -> int:
        return len(self.pieces()) if self.output_tokens < 0 else self.output_tokens

    def call_id(self, place: int, answer_id: str) -> str:
        return self.tool_calls[place].id or f"tool-{answer_id}-{place}"

    def input_pieces(self) -> Iterator[Piece]:
        """The calls' inputs, delta by delta."""
        cut = [
            [Piece(i, text) for text in _cut(call.arguments, self.input_piece)]
            for i, call in enumerate(self.tool_calls)
        ]
        rounds = zip_longest(*cut) if self.interleave else cut
        return (piece for pieces in rounds for piece in pieces if piece is not None)

    def pieces(self) -> list[str]:
        """The answer's text, delta by delta."""
        text = (self.text * (self.size // max(1, len(self.text)) + 1))[: self.size] if self.size else self.text
        if self.units:
            utf16 = text.encode("utf-16-le", "surrogatepass")
            cut = [utf16[i : i + 2].decode("utf-16-le", "surrogatepass") for i in range(0, len(utf16), 2)]
        else:
            cut = _cut(text, self.piece)
        return [*(f"w{i} " for i in range(self.chunks - 1)), *cut]


def directive(prompt: str) -> dict[str, str]:
    """The fields that a prompt sets; those of its last directive, if it has several."""
    found = _DIRECTIVE.findall(prompt)
    return dict(item.split("=", 1) for item in shlex.split(found[-1])) if found else {}


def _cut(text: str, size: int) -> list[str]:
    return [text[i : i + size] for i in range(0, len(text), size)] if size else [text]


def _calls(value: Any) -> tuple[PlannedCall, ...]:
    told: Any = json.loads(value) if isinstance(value, str) else value
    calls = cast("list[Any]", [told] if isinstance(told, dict) else list(told))
    return tuple(call if isinstance(call, PlannedCall) else PlannedCall(**call) for call in calls)


def _cast(known: object, value: Any) -> object:
    """The value as what the field is; a directive has only text."""
    match known:
        case tuple():
            return _calls(value)
        case bool():
            return value in (True, "1", "true")
        case int():
            return int(value)
        case float():
            return float(value)
        case _:
            return str(value)
