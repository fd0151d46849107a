"""Counts of tokens as providers tell them, read with care: a wrong one must not cost a good answer."""

from __future__ import annotations

from typing import Any, cast


def is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53


def count(value: Any) -> int:
    """The count, or 0 for what is none."""
    return value if is_count(value) else 0


def fields_of(value: Any) -> dict[str, Any]:
    """The fields of an object, or none."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}
