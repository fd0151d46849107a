"""Checks of values that clients send: directory, title, model, submission, environment."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from kedge.protocol.bounds import MAX_ENV_CHARS, MAX_TITLE_CHARS
from kedge.protocol.errors import Invalid, TooLarge
from kedge.protocol.runs import Submission
from kedge.protocol.sessions import SessionChange
from kedge.protocol.validation import (
    check_attachments,
    check_command,
    check_model,
    check_options,
    check_prompt,
    check_text,
)


def resolve_directory(path: Path) -> str:
    """Return the resolved path of an existing directory; raises `Invalid`."""
    check_text(str(path), "path")
    try:
        resolved = path.resolve()
        if resolved.is_dir():
            return str(resolved)
        why = "is not a directory"
    except (OSError, RuntimeError) as error:  # a name too long, a link to itself
        why = (error.strerror if isinstance(error, OSError) else None) or "cannot be resolved"
    raise Invalid("invalid_request", f"{str(path)[:200]} {why}; name an existing directory")


def check_title(title: str) -> None:
    check_text(title, "title")
    if len(title) > MAX_TITLE_CHARS:
        raise Invalid("invalid_request", f"the title is over {MAX_TITLE_CHARS} characters; shorten it")


def check_change(change: SessionChange) -> None:
    if isinstance(change.title, str):
        check_title(change.title)
    if isinstance(change.model, str):
        check_text(change.model, "model")
        check_model(change.model)


def check_submission(submission: Submission) -> None:
    if submission.model is not None:
        check_text(submission.model, "model")
        check_model(submission.model)
    if submission.kind == "shell":
        check_command(submission.prompt)
    elif submission.kind != "summarize":
        check_prompt(submission.prompt, submission.attachments)
    check_attachments(submission.attachments)
    check_options(submission.options)


def check_env(env: Mapping[str, str] | None) -> None:
    if env is not None and sum(len(name) + len(value) for name, value in env.items()) > MAX_ENV_CHARS:
        raise TooLarge("env_too_large", f"the environment has over {MAX_ENV_CHARS >> 20} Mi characters; send less")
