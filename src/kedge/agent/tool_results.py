"""Limits on tool results: bounded in size (P17), valid Unicode, never empty."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from kedge.protocol.messages import Image, Message, ToolResult, replace_surrogates
from kedge.tools.port import Output

# More than any tool's own limit: a tool without one must not fill the context or the disk.
MAX_CHARS = 256 * 1024
MAX_SHOWN_CHARS = 1024 * 1024  # of output shown while a call runs
MAX_IMAGES = 8
MAX_IMAGE_BYTES = 5 * 1024 * 1024  # the limit of providers
MAX_METADATA_BYTES = 1024 * 1024  # metadata is shown by clients, such as a diff


def limit_output(output: Output) -> Output:
    notes: list[str] = []
    images: list[Image] = []
    for image in output.images:
        if len(images) == MAX_IMAGES or len(image.data) > MAX_IMAGE_BYTES:
            notes.append(f"[An image of {len(image.data)} bytes is left out: it is too large, or one too many.]")
        else:
            images.append(image)
    content = "\n".join([_cut(replace_surrogates(output.content)), *notes]) or "(no output)"
    return Output(content=content, is_error=output.is_error, metadata=_limit_metadata(output.metadata), images=images)


def find_known_files(history: list[Message]) -> dict[str, str]:
    """Return the digests of the files that the model has read or written, as it last saw them, by path."""
    known: dict[str, str] = {}
    for message in history:
        if message.role == "tool":
            for part in message.parts:
                if isinstance(part, ToolResult):
                    known |= read_file_digests(part.metadata)
    return known


def read_file_digests(metadata: Mapping[str, Any] | None) -> dict[str, str]:
    match metadata:
        case {"files": {**files}}:
            return {str(path): digest for path, digest in files.items() if isinstance(digest, str)}
        case _:
            return {}


def clean(value: Any) -> Any:
    """Return a JSON value whose strings are valid Unicode."""
    match value:
        case str():
            return replace_surrogates(value)
        case {**fields}:
            return {clean(name): clean(each) for name, each in fields.items()}
        case [*items]:
            return [clean(item) for item in items]
        case _:
            return value


def _limit_metadata(metadata: dict[str, Any] | None) -> dict[str, Any] | None:
    if metadata is None:
        return None
    metadata = clean(metadata)
    if len(msgspec.json.encode(metadata)) <= MAX_METADATA_BYTES:
        return metadata
    return {"files": files} if (files := read_file_digests(metadata)) else None  # small, and needed to edit safely


def _cut(content: str) -> str:
    """Return the beginning and the end of a long text: the middle matters least."""
    if len(content) <= MAX_CHARS:
        return content
    half = MAX_CHARS // 2
    return f"{content[:half]}\n[… {len(content) - 2 * half} characters are left out here …]\n{content[-half:]}"
