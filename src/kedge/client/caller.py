"""Whose variables a run works with: those of the process that asks for it."""

from __future__ import annotations

import os


def environment() -> dict[str, str]:
    """The caller's variables, for the run's tools and keys; never our own key to the server."""
    return {name: value for name, value in os.environ.items() if name != "KEDGE_TOKEN" and _is_text(name + value)}


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
