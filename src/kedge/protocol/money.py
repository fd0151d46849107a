"""How an amount of dollars is written: to a hundredth of a cent, and less than that so far as it says anything."""

from __future__ import annotations


def dollars(amount: float) -> str:
    if amount >= 0.01 or amount <= 0:
        return f"${amount:.4f}".rstrip("0").rstrip(".") if amount != int(amount) else f"${amount:.0f}"
    text = f"{amount:.12f}"
    digits = text.removeprefix("0.")
    kept = len(digits) - len(digits.lstrip("0")) + 2  # two digits that are not only there to hold the place
    return f"${amount:.{min(kept, len(digits))}f}".rstrip("0").rstrip(".")
