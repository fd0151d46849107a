"""ToolError: a call failed. Its text is for the model, and says what to do next."""

from __future__ import annotations


class ToolError(Exception):
    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text
