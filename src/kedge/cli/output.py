"""Standard output and error of every command, where they are a terminal: what others wrote cannot drive it.

A pipe or a file gets what is printed, unchanged.
"""

from __future__ import annotations

import os
import sys

from kedge.protocol.text_safety import for_terminal, json_for_terminal, visible_line

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


def complain(why: str, code: int) -> int:
    print(f"kedge: {' '.join(visible_line(why).split())}", file=sys.stderr)
    return code


def print_json(value: Any) -> None:
    print(json_line(value, is_for_terminal=os.isatty(1)))


def json_line(value: Any, *, is_for_terminal: bool) -> str:
    import json

    text = json.dumps(value, ensure_ascii=False)
    return json_for_terminal(text) if is_for_terminal else text


def print_table(rows: list[tuple[str, ...]]) -> None:
    """Columns as wide as they need; the last one is cut at the terminal's edge, and not in a pipe."""
    if not rows:
        return
    rows = [tuple(map(visible_line, row)) for row in rows]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]) - 1)]
    edge = (os.get_terminal_size(1).columns or None) if os.isatty(1) else None  # 0: the terminal does not say
    for row in rows:
        line = "  ".join([cell.ljust(width) for cell, width in zip(row, widths, strict=False)] + [row[-1]])
        print(line.rstrip()[:edge])
