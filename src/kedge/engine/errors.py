"""Errors between the engine and a turn.

TurnFailed      raised by a turn: the run fails with this text and code
NotRecorded     raised to a turn: the old content of a file could not be saved, so the file must not be changed
"""

from __future__ import annotations


class TurnFailed(Exception):
    """`text` becomes the error of the run's `run_complete` event."""

    def __init__(self, text: str, code: str = "failed") -> None:
        super().__init__(text)
        self.text = text
        self.code = code


class NotRecorded(Exception):
    pass
