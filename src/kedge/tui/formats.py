"""Numbers and durations as people read them."""

from __future__ import annotations

from collections.abc import Callable

from rich.cells import cell_len, set_cell_size

from kedge.protocol.runs import Usage
from kedge.protocol.text_safety import dollars, visible_line

TASK_MARKS = {"completed": "☑", "in_progress": "◐", "pending": "☐"}


def format_tokens(count: int) -> str:
    if count < 1_000:
        return str(count)
    if count < 999_500:
        return f"{count / 1_000:.1f}k" if count < 99_950 else f"{count / 1_000:.0f}k"
    return f"{count / 1_000_000:.1f}M"


def format_cost(usage: Usage) -> str:
    """Return the cost; empty if it is unknown, or nothing."""
    return f"{'≈' if usage.estimated else ''}{dollars(usage.cost)}" if usage.cost > 0 else ""


def describe_usage(usage: Usage, count: Callable[[int], str] = format_tokens) -> str:
    """Return the tokens that models read and wrote: all that they read, and how much of it came from a cache."""
    cached = f" ({count(usage.cache_read_tokens)} cached)" if usage.cache_read_tokens else ""
    return f"{'≈' if usage.estimated else ''}{count(usage.prompt_tokens)} in{cached} · {count(usage.output_tokens)} out"


def format_duration(seconds: float) -> str:
    whole = int(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} m {whole % 60:02} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02} m"


def format_age(seconds: float) -> str:
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= size:
            return f"{int(seconds // size)} {unit} ago"
    return "just now"


def one_line(text: str, width: int) -> str:
    """Return the start of a text on one line, cut to `width` cells."""
    line = " ".join(visible_line(text[: width * 4]).split())
    return line if cell_len(line) <= width else set_cell_size(line, max(width - 1, 1)).rstrip() + "…"


def one_line_end(text: str, width: int) -> str:
    """Return the end of a text on one line, cut to `width` cells."""
    line = " ".join(visible_line(text[-width * 4 :]).split())
    if cell_len(line) <= width and len(text) <= width * 4:
        return line
    while cell_len(line) > width - 1:
        line = line[1:]
    return f"…{line}"


def pad(text: str, width: int) -> str:
    """Return a text with spaces at its end, for a column of `width` cells."""
    return text + " " * (width - cell_len(text))
