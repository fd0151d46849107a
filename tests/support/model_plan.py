"""What the scripted model server does with a call: a `Plan`, whose fields a prompt can override.

    [[fake chunks=2000 delay_ms=1]]

in the last user message changes the server's own plan for that call. Places are counted in deltas that were sent before
them: `AT_ONCE` is before the first byte of the answer, 0 after its head, `NEVER` nowhere.
"""

from __future__ import annotations

import dataclasses
import re
import shlex
from collections.abc import Mapping
from typing import Any

NEVER = -2
AT_ONCE = -1

_DIRECTIVE = re.compile(r"\[\[fake\s+([^\]]*)\]\]")


@dataclasses.dataclass(frozen=True)
class Plan:
    # the answer
    text: str = "FAKE-ANSWER-OK"
    reasoning: str = ""  # comes before the text
    echo: bool = False  # answer with the last user message
    chunks: int = 1  # that many deltas: "w0 ", "w1 ", … and the text
    piece: int = 0  # cut the text into deltas of that many characters
    units: bool = False  # cut it into UTF-16 units, through the middle of surrogate pairs
    size: int = 0  # repeat the text up to that many characters
    finish: str = "stop"
    usage: bool = True

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
    malformed: str = ""  # see `malformed_frames` of the wire
    times: int = 0

    # the bytes
    raw: bool = False  # characters as they are, instead of escapes
    crlf: bool = False
    comments: bool = False
    split: int = 0  # write that many bytes at a time

    def changed(self, fields: Mapping[str, object]) -> Plan:
        """With these fields, from JSON or from a directive; an unknown one is a mistake of the test."""
        return dataclasses.replace(self, **{name: _cast(getattr(self, name), value) for name, value in fields.items()})

    def without_faults(self) -> Plan:
        return dataclasses.replace(self, status=0, drop_after=NEVER, hang_after=NEVER, malformed="")

    def pieces(self) -> list[str]:
        """The answer's text, delta by delta."""
        text = (self.text * (self.size // max(1, len(self.text)) + 1))[: self.size] if self.size else self.text
        if self.units:
            utf16 = text.encode("utf-16-le", "surrogatepass")
            cut = [utf16[i : i + 2].decode("utf-16-le", "surrogatepass") for i in range(0, len(utf16), 2)]
        elif self.piece:
            cut = [text[i : i + self.piece] for i in range(0, len(text), self.piece)]
        else:
            cut = [text]
        return [*(f"w{i} " for i in range(self.chunks - 1)), *cut]


def directive(prompt: str) -> dict[str, str]:
    """The fields that a prompt sets; those of its last directive, if it has several."""
    found = _DIRECTIVE.findall(prompt)
    return dict(item.split("=", 1) for item in shlex.split(found[-1])) if found else {}


def _cast(known: object, value: Any) -> object:
    """The value as what the field is; a directive has only text."""
    match known:
        case bool():
            return value in (True, "1", "true")
        case int():
            return int(value)
        case float():
            return float(value)
        case _:
            return str(value)
