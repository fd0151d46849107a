"""ToolError: a call that could not be done. Its text goes to the model, and says what to do next."""

from __future__ import annotations


class ToolError(Exception):
    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text
