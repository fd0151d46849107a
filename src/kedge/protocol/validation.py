"""Checks of prompts, attachments, options and texts, which every entry point uses (P17). Each raises a KedgeError."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import Any

import msgspec

from kedge.protocol.bounds import (
    IMAGE_TYPES,
    MAX_ATTACHMENTS,
    MAX_COMMAND_BYTES,
    MAX_DEPTH,
    MAX_FILE_NAME_CHARS,
    MAX_IMAGE_BYTES,
    MAX_PROMPT_BYTES,
    MAX_RULE_CHARS,
    MAX_RULES,
    MAX_SCHEMA_BYTES,
    MIME_TYPE,
    MODEL,
    RUN_ID,
    TEXT_IMAGES,
    detect_image_type,
)
from kedge.protocol.errors import Invalid, TooLarge
from kedge.protocol.runs import Attachment, RunOptions


def check_run_id(run_id: str) -> None:
    if not re.fullmatch(RUN_ID, run_id):
        raise Invalid(
            "invalid_run_id", "run_id must be 1 to 128 characters of A-Z a-z 0-9 _ - and start with a letter or a digit"
        )


def check_model(model: str) -> None:
    if not re.fullmatch(MODEL, model):
        raise Invalid("invalid_model", f"{model[:100]!r} is not a model name; use PROVIDER/MODEL, like openai/gpt-5")


def check_prompt(prompt: str, attachments: Sequence[Attachment] = ()) -> None:
    check_text(prompt, "prompt")
    if len(prompt.encode()) > MAX_PROMPT_BYTES:
        raise TooLarge("prompt_too_large", f"the prompt is over {MAX_PROMPT_BYTES >> 20} MiB; attach a file instead")
    if not prompt.strip() and not any(a.mime_type.startswith("text/") for a in attachments):
        raise Invalid("empty_prompt", "the prompt is empty")


def check_command(command: str) -> None:
    """Check a command of the user, which becomes one argument of a shell."""
    check_prompt(command)
    if "\0" in command:
        raise Invalid("invalid_text", "the command contains a NUL character; remove it")
    if len(command.encode()) > MAX_COMMAND_BYTES:
        raise TooLarge("prompt_too_large", f"the command is over {MAX_COMMAND_BYTES:,} bytes; put it into a script")


def check_attachments(attachments: Sequence[Attachment]) -> None:
    if len(attachments) > MAX_ATTACHMENTS:
        raise Invalid("invalid_attachment", f"there are more than {MAX_ATTACHMENTS} attachments; send fewer")
    for each in attachments:
        check_text(each.file_name, "file name")
        name = f"attachment {each.file_name[:100]!r}"
        if not 0 < len(each.file_name) <= MAX_FILE_NAME_CHARS:
            raise Invalid("invalid_attachment", f"a file name must have 1 to {MAX_FILE_NAME_CHARS} characters")
        if not re.fullmatch(MIME_TYPE, each.mime_type):
            raise Invalid("invalid_attachment", f"{name}: mime_type must be like text/plain or image/png")
        if each.mime_type.startswith("text/") and len(each.content) > MAX_PROMPT_BYTES:
            raise TooLarge(
                "attachment_too_large", f"{name} is over {MAX_PROMPT_BYTES >> 20} MiB; name it in the prompt"
            )
        if each.mime_type.startswith("image/") and each.mime_type not in TEXT_IMAGES:
            _check_image(name, each)


def _check_image(name: str, image: Attachment) -> None:
    # An image that a provider refuses would be refused again in each later step.
    if image.mime_type not in IMAGE_TYPES:
        why = f"{image.mime_type} images are not supported; send {', '.join(IMAGE_TYPES)}"
        raise Invalid("invalid_attachment", f"{name}: {why}")
    if detect_image_type(image.content) != image.mime_type:
        raise Invalid("invalid_attachment", f"{name}: its content is not {image.mime_type}; check the file")
    if len(image.content) > MAX_IMAGE_BYTES:
        raise TooLarge("attachment_too_large", f"{name} is over {MAX_IMAGE_BYTES / 2**20:.2f} MiB; scale it down")


def check_options(options: RunOptions) -> None:
    if options.system is not None:
        check_text(options.system, "system prompt")
        if len(options.system.encode()) > MAX_PROMPT_BYTES:
            raise TooLarge("system_too_large", f"the system prompt is over {MAX_PROMPT_BYTES >> 20} MiB; shorten it")
    if options.output_schema is not None:
        _check_schema(options.output_schema)
    for rules, what in ((options.allow, "allow"), (options.deny, "deny")):
        if len(rules) > MAX_RULES or any(len(rule) > MAX_RULE_CHARS for rule in rules):
            most = f"{MAX_RULES} rules of {MAX_RULE_CHARS} characters"
            raise Invalid("invalid_options", f"{what} takes up to {most}")
        for rule in rules:
            check_text(rule, "rule")


def _check_schema(schema: dict[str, Any]) -> None:
    check_depth(schema, "output schema's parts")
    try:
        size = len(msgspec.json.encode(schema))
    except UnicodeEncodeError:
        raise Invalid(
            "invalid_text", "the output schema contains half a surrogate pair, which is not valid Unicode"
        ) from None
    if size > MAX_SCHEMA_BYTES:
        raise TooLarge("schema_too_large", f"the output schema is over {MAX_SCHEMA_BYTES >> 10} KiB; shorten it")


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
    """Raise Invalid for half a surrogate pair, which can be neither stored nor sent."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise Invalid(
            "invalid_text", f"the {what} contains half a surrogate pair, which is not valid Unicode"
        ) from None
