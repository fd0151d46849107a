"""Standard output and error of every command, where they are a terminal: what others wrote cannot drive it.

A pipe or a file gets what is printed, unchanged.
"""

from __future__ import annotations

import sys

from kedge.protocol.text_safety import for_terminal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, TextIO


class MarkedStream:
    """A stream whose text is marked before it is written; everything else is the stream's own."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        self._stream.write(for_terminal(text))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def mark_terminal_output() -> None:
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is not None and stream.isatty():
            setattr(sys, name, MarkedStream(stream))
