"""Whose variables a run works with: those of the process that asks for it."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def environment() -> dict[str, str]:
    """The caller's variables, for the run's tools and keys; never our own key to the server."""
    return {name: value for name, value in os.environ.items() if name != "KEDGE_TOKEN" and _is_text(name + value)}


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def submission(prompt: str, session_id: str, run_id: str | None, options: dict[str, Any]) -> dict[str, Any]:
    """The run gets its name before it is sent, so that it can be sent again."""
    return {"session_id": session_id, "prompt": prompt, "run_id": run_id or new_run_id(), **options}


def new_run_id() -> str:
    return os.urandom(16).hex()
