"""What a command or tool printed: some of its lines, and a line that says how many more there are."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.segment import Segment
from rich.style import Style

from kedge.protocol.text_safety import program_output
from kedge.tui.chat.lines import Line, chop
from kedge.tui.chat.palette import Palette

Fold = Callable[[Sequence[Segment], int], list[Line]]  # `chop` for what is printed, `wrap` for what is said

MAX_LINES = 1_000  # of one output on the screen: who needs more has it in a file
MAX_LINE_CHARS = 4_000  # of one line of it, for the same reason


def count_lines(text: str) -> int:
    stripped = text.rstrip("\n")
    return stripped.count("\n") + 1 if stripped else 0


def first_lines(text: str, limit: int, width: int, style: Style, palette: Palette, fold: Fold = chop) -> list[Line]:
    """The beginning, then how much is left out."""
    return _with_rest(text.split("\n", limit)[:limit], text, limit, width, style, palette, fold, at_end=True)


def last_lines(text: str, limit: int, width: int, style: Style, palette: Palette) -> list[Line]:
    """How much is left out, then the end."""
    shown = text.rstrip("\n").rsplit("\n", limit)[-limit:]
    return _with_rest(shown, text, limit, width, style, palette, chop, at_end=False)


def more_lines(count: int, palette: Palette) -> Line:
    return [Segment(f"… {count:,} more line{'s' if count > 1 else ''}", palette.muted)]


def _with_rest(
    shown: list[str], text: str, limit: int, width: int, style: Style, palette: Palette, fold: Fold, *, at_end: bool
) -> list[Line]:
    total = count_lines(text)
    if not total:
        return []
    lines: list[Line] = []
    for each in shown[:total]:
        cut = each if len(each) <= MAX_LINE_CHARS else f"{each[:MAX_LINE_CHARS]} …"
        for line in program_output(cut).split("\n"):
            lines += fold([Segment(line, style)] if line else [], width)
    rest = [more_lines(total - limit, palette)] if total > limit else []
    return [*lines, *rest] if at_end else [*rest, *lines]
