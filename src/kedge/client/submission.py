"""The body of `POST W/agent`: a prompt, its run id, and the caller's environment."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def make_submission(prompt: str, session_id: str, run_id: str | None, options: dict[str, Any]) -> dict[str, Any]:
    """The run id is chosen here, so that the same submission can be sent again after a lost connection (P3)."""
    return {"session_id": session_id, "prompt": prompt, "run_id": run_id or new_run_id(), **options}


def new_run_id() -> str:
    return os.urandom(16).hex()


def caller_environment() -> dict[str, str]:
    """The variables of this process, for the run's tools and API keys; without the token of the server itself."""
    return {name: value for name, value in os.environ.items() if name != "KEDGE_TOKEN" and _is_utf8(name + value)}


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
