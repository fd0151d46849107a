"""What is kept of a call's output: bounded (P17), valid Unicode, and never empty."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from kedge.protocol.messages import Image, Message, ToolResult, whole_characters
from kedge.tools.port import Output

# More than any tool gives by itself; one that forgot its own bound must not fill the context or the disk.
MAX_CHARS = 256 * 1024
MAX_SHOWN_CHARS = 1024 * 1024  # of output while a call runs, for whoever watches
MAX_IMAGES = 8
MAX_IMAGE_BYTES = 5 * 1024 * 1024  # what providers take
MAX_METADATA_BYTES = 1024 * 1024  # of what clients show beside a result, like a diff


def bounded(output: Output) -> Output:
    notes: list[str] = []
    images: list[Image] = []
    for image in output.images:
        if len(images) == MAX_IMAGES or len(image.data) > MAX_IMAGE_BYTES:
            notes.append(f"[An image of {len(image.data)} bytes is left out: it is too large, or one too many.]")
        else:
            images.append(image)
    content = "\n".join([_cut(whole_characters(output.content)), *notes]) or "(no output)"
    return Output(content=content, is_error=output.is_error, metadata=_bounded_metadata(output.metadata), images=images)


def known_files(history: list[Message]) -> dict[str, str]:
    """The files that the model saw or wrote, as it last saw them: path to digest."""
    known: dict[str, str] = {}
    for message in history:
        if message.role == "tool":
            for part in message.parts:
                if isinstance(part, ToolResult):
                    known |= files_of(part.metadata)
    return known


def files_of(metadata: Mapping[str, Any] | None) -> dict[str, str]:
    match metadata:
        case {"files": {**files}}:
            return {str(path): digest for path, digest in files.items() if isinstance(digest, str)}
        case _:
            return {}


def clean(value: Any) -> Any:
    """A value of JSON whose texts can be stored and sent."""
    match value:
        case str():
            return whole_characters(value)
        case {**fields}:
            return {clean(name): clean(each) for name, each in fields.items()}
        case [*items]:
            return [clean(item) for item in items]
        case _:
            return value


def _bounded_metadata(metadata: dict[str, Any] | None) -> dict[str, Any] | None:
    if metadata is None:
        return None
    metadata = clean(metadata)
    if len(msgspec.json.encode(metadata)) <= MAX_METADATA_BYTES:
        return metadata
    return {"files": files} if (files := files_of(metadata)) else None  # what keeps edits safe is small


def _cut(content: str) -> str:
    """The beginning and the end: what matters most is seldom in the middle."""
    if len(content) <= MAX_CHARS:
        return content
    half = MAX_CHARS // 2
    return f"{content[:half]}\n[… {len(content) - 2 * half} characters are left out here …]\n{content[-half:]}"
