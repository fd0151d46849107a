"""What people give a workspace and a session: a directory that is there, a title of one line, a model's name."""

from __future__ import annotations

from pathlib import Path

from kedge.protocol.bounds import MAX_TITLE_CHARS, check_model, check_text
from kedge.protocol.errors import Invalid
from kedge.protocol.sessions import SessionChange


def resolved_directory(path: Path) -> str:
    check_text(str(path), "path")
    try:
        resolved = path.resolve()
        if resolved.is_dir():
            return str(resolved)
        why = "is not a directory"
    except (OSError, RuntimeError) as error:  # a name too long, a link to itself
        why = (error.strerror if isinstance(error, OSError) else None) or "cannot be resolved"
    raise Invalid("invalid_request", f"{str(path)[:200]} {why}; name an existing directory")


def checked_title(title: str) -> str:
    check_text(title, "title")
    if len(title) > MAX_TITLE_CHARS:
        raise Invalid("invalid_request", f"the title is over {MAX_TITLE_CHARS} characters")
    return title


def checked_change(change: SessionChange) -> SessionChange:
    if isinstance(change.title, str):
        checked_title(change.title)
    if isinstance(change.model, str):
        check_text(change.model, "model")
        check_model(change.model)
    return change
