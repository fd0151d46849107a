"""Why a command cannot be held."""

from __future__ import annotations


class CannotHold(Exception):
    """The sandbox that is wanted cannot be had here; `why` is said to a person, after "because"."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why
