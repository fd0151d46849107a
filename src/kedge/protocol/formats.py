"""Texts that several packages derive the same way: short lines, provisional titles and amounts of money.

Standard library only: every `kedge run` imports this.
"""

from __future__ import annotations

PROVISIONAL_CHARS = 60  # fits a column of a list


def shorten(text: str, max_chars: int) -> str:
    """Return a text on one line, cut to `max_chars` with an ellipsis."""
    line = " ".join(text.split())
    return line if len(line) <= max_chars else f"{line[: max_chars - 1]}…"


def provisional_title(prompt: str) -> str:
    """The start of the first prompt, on one line: a session's title until it gets another."""
    return shorten(prompt, PROVISIONAL_CHARS)


def dollars(amount: float) -> str:
    """An amount to a hundredth of a cent; smaller ones with two significant digits."""
    if amount >= 0.01 or amount <= 0:
        return f"${amount:.4f}".rstrip("0").rstrip(".") if amount != int(amount) else f"${amount:.0f}"
    text = f"{amount:.12f}"
    digits = text.removeprefix("0.")
    decimals = len(digits) - len(digits.lstrip("0")) + 2
    return f"${amount:.{min(decimals, len(digits))}f}".rstrip("0").rstrip(".")
