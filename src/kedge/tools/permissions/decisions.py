"""The decision about a call: allow it, ask the user, or refuse it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

import msgspec

from kedge.tools.port import RunAs

MAX_LABEL_CHARS = 200


class Allow(msgspec.Struct, frozen=True, kw_only=True):
    why: str
    by: Literal["yolo", "rule", "hook", "grant", "mode", "sandbox", "default"] = "default"  # default: needs no approval
    run_as: RunAs = "approved"
    readable: tuple[str, ...] = ()  # paths outside the workspace that a sandboxed command may read


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """The user decides. `rules` are what "allow for this session" remembers; without any, it allows this once."""

    label: str  # what is in question, in one line
    notes: tuple[str, ...] = ()  # one for each thing that was not allowed
    rules: tuple[str, ...] = ()
    is_doubtful: bool = False  # a deny rule may forbid it
    readable: tuple[str, ...] = ()  # in mode plan: what the sandboxed command may read once it is allowed

    @classmethod
    def of(cls, notes: Iterable[str], rules: Iterable[str] = (), *, is_doubtful: bool = False) -> Ask:
        each = tuple(dict.fromkeys(notes))
        return cls(
            label=shorten("; ".join(each)), notes=each, rules=tuple(dict.fromkeys(rules)), is_doubtful=is_doubtful
        )

    def params(self, shown: dict[str, Any]) -> dict[str, Any]:
        """The parameters of the request: what the tool shows, and what `grants.granted` reads back after the answer."""
        return {**shown, "label": self.label, "notes": list(self.notes), "rules": list(self.rules)}


class Refuse(msgspec.Struct, frozen=True, kw_only=True):
    """Denied by a rule or by the mode: an error result that the model may work around."""

    why: str  # for the model: what refused, and what it may do instead
    rule: str | None = None


Decision = Allow | Ask | Refuse


def shorten(label: str) -> str:
    return label if len(label) <= MAX_LABEL_CHARS else label[: MAX_LABEL_CHARS - 1] + "…"
