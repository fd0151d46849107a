"""Printing for commands: errors, JSON, tables; and standard streams that other people's text cannot drive."""

from __future__ import annotations

import os
import sys

from kedge.protocol.text_safety import as_sentence, dollars, for_terminal, json_for_terminal, visible_line

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, TextIO


class MarkedStream:
    """A text stream that marks control characters before it writes; everything else is the stream's own."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        self._stream.write(for_terminal(text))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def mark_terminal_output() -> None:
    """Replace standard output and error where they are a terminal; a pipe or a file gets the exact text."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is not None and stream.isatty():
            setattr(sys, name, MarkedStream(stream))


def print_error(text: str, code: int) -> int:
    """Print one sentence on standard error; returns `code`."""
    print(note_line(as_sentence(text)), file=sys.stderr)
    return code


def note_line(text: str) -> str:
    """A line of Kedge's own for standard error."""
    return f"kedge: {' '.join(visible_line(text).split())}"


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


def format_duration(seconds: float) -> str:
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} m {whole % 60:02} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02} m"


def describe_cost(usage: dict[str, Any]) -> str:
    cost = usage.get("cost") or 0
    return f"{'~' if usage.get('estimated') else ''}{dollars(cost)}" if cost > 0 else "-"
