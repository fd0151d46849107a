"""P17: what is bounded, and the one check of a prompt that every way in uses."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from kedge.protocol.errors import Invalid, TooLarge

if TYPE_CHECKING:
    from kedge.protocol.runs import Attachment

# Room for several pasted screenshots in one request; more than that belongs in files.
MAX_BODY_BYTES = 32 * 1024 * 1024
# About a million tokens: no model reads more in one prompt.
MAX_PROMPT_BYTES = 4 * 1024 * 1024
# A person never queues this many; a runaway script is stopped before it fills the disk.
MAX_OPEN_RUNS = 100
# Enough for a stack trace and a provider's explanation; it is stored three times (row, error event, end).
MAX_ERROR_CHARS = 4_000
# More than any system takes for a process; it is kept in memory as long as its run is open.
MAX_ENV_CHARS = 2 * 1024 * 1024
# A title is one line of a list.
MAX_TITLE_CHARS = 200
# No form is nested like this; and what is in the log must be readable for every client, whose JSON readers give up at
# a thousand or much earlier.
MAX_DEPTH = 32

# No `\s` and no `.`: they mean other characters to a client that takes these from the OpenAPI document.
MODEL = r"[^/\x00-\x20\x7f]+/[^\x00-\x20\x7f][^\x00-\x1f\x7f]{0,250}"
RUN_ID = r"[A-Za-z0-9][A-Za-z0-9_-]{0,127}"


def check_run_id(run_id: str) -> None:
    if not re.fullmatch(RUN_ID, run_id):
        raise Invalid("invalid_run_id", "run_id must be 1 to 128 of A-Z a-z 0-9 _ - and start with a letter or a digit")


def check_model(model: str) -> None:
    if not re.fullmatch(MODEL, model):
        raise Invalid("invalid_model", f"{model[:100]!r} names no model; say PROVIDER/MODEL, like openai/gpt-5")


def check_prompt(prompt: str, attachments: Sequence[Attachment] = ()) -> None:
    check_text(prompt, "prompt")
    if len(prompt.encode()) > MAX_PROMPT_BYTES:
        raise TooLarge("prompt_too_large", f"the prompt is over {MAX_PROMPT_BYTES >> 20} MiB; attach a file instead")
    if not prompt.strip() and not any(a.mime_type.startswith("text/") for a in attachments):
        raise Invalid("empty_prompt", "the prompt is empty; say what to do")


def check_depth(value: Any, what: str, most: int = MAX_DEPTH) -> None:
    inner: Collection[Any] = ()
    match value:
        case {**fields}:
            inner = fields.values()
        case [*items]:
            inner = items
        case _:
            pass
    if inner and most == 0:
        raise Invalid("invalid_request", f"the {what} are nested more than {MAX_DEPTH} levels deep")
    for each in inner:
        check_depth(each, what, most - 1)


def check_text(text: str, what: str) -> None:
    """Half a surrogate pair is no text: it could be neither stored nor sent."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise Invalid("invalid_text", f"the {what} holds half a surrogate pair and is not valid Unicode") from None
