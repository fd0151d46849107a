"""The title that a session has until somebody or something names it."""

from __future__ import annotations

PROVISIONAL_CHARS = 60  # a column of a list


def provisional_title(prompt: str) -> str:
    """What a list of sessions shows: the beginning of what was asked first."""
    line = " ".join(prompt.split())
    return line if len(line) <= PROVISIONAL_CHARS else f"{line[: PROVISIONAL_CHARS - 1]}…"
