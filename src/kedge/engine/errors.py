"""Errors between the engine and a turn.

TurnFailed      raised by a turn: the run fails with this text and code
"""

from __future__ import annotations


class TurnFailed(Exception):
    """The run cannot go on; `text` is what its `run_complete` says."""

    def __init__(self, text: str, code: str = "failed") -> None:
        super().__init__(text)
        self.text = text
        self.code = code
