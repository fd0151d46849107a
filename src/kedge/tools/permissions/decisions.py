"""What the judge says: let it happen, ask a person, or refuse."""

from __future__ import annotations

from typing import Any, Literal

import msgspec


class Allow(msgspec.Struct, frozen=True, kw_only=True):
    why: str
    by: Literal["yolo", "rule", "hook", "grant", "mode", "sandbox", "habit"] = "habit"  # habit: it needs nobody's leave


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """A person decides. `rules` are what "allow for this session" remembers; without any, it allows this once."""

    label: str  # what is in question, in one line
    notes: tuple[str, ...] = ()  # one for each thing that was not let through
    rules: tuple[str, ...] = ()

    def params(self, shown: dict[str, Any]) -> dict[str, Any]:
        """The parameters of the request: what the tool shows, and what `grants.granted` reads back after the answer."""
        return {**shown, "label": self.label, "notes": list(self.notes), "rules": list(self.rules)}


class Refuse(msgspec.Struct, frozen=True, kw_only=True):
    """A rule's or a mode's no: an error result that the model may work around."""

    why: str  # for the model: what refused, and what it may do instead
    rule: str | None = None


Decision = Allow | Ask | Refuse
