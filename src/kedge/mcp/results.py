"""Results of servers as text and images for a model. No IO; links are shown, and never followed."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from kedge.mcp.messages import CallResult, Content, ResourceContents
from kedge.protocol.bounds import detect_image_type
from kedge.protocol.messages import Image
from kedge.protocol.text_safety import one_line

MAX_BLOCKS = 1_000
MAX_FILE_BYTES = 64 * 1024 * 1024


class Attachment(NamedTuple):
    """Bytes that a model cannot read as they are: they are saved to a file."""

    mime_type: str
    data: bytes


class ToolOutcome(NamedTuple):
    """`parts`: text, or an attachment at its place in the text."""

    parts: Sequence[str | Attachment]
    images: Sequence[Image] = ()
    is_error: bool = False


def convert_result(result: CallResult, *, sees_images: bool) -> ToolOutcome:
    """`sees_images`: whether the model takes images. Structured content counts only if there is no other."""
    parts, images = convert_content(result.content, sees_images=sees_images)
    if not parts and not images and result.structured_content is not msgspec.UNSET:
        parts = [msgspec.json.format(msgspec.json.encode(result.structured_content), indent=2).decode()]
    return ToolOutcome(parts, images, result.is_error)


def convert_content(content: Sequence[Content], *, sees_images: bool) -> tuple[list[str | Attachment], list[Image]]:
    parts: list[str | Attachment] = []
    images: list[Image] = []
    for block in content[:MAX_BLOCKS]:
        match block.type:
            case "text":
                parts.append(block.text or "")
            case "image" | "audio":
                _add_media(block, parts, images, sees_images=sees_images)
            case "resource_link":
                parts.append(_describe_link(block))
            case "resource" if block.resource is not None:
                parts += convert_resource(block.resource)
            case _:
                parts.append(f"[Content of the unknown type {one_line(block.type, 40)} is left out.]")
    if len(content) > MAX_BLOCKS:
        parts.append(f"[{len(content) - MAX_BLOCKS} more blocks are left out.]")
    return [part for part in parts if part], images


def convert_resource(resource: ResourceContents) -> list[str | Attachment]:
    kind = f", {one_line(resource.mime_type, 80)}" if resource.mime_type else ""
    about = f"[Resource {one_line(resource.uri, 500)}{kind}]"
    if resource.text is not None:
        return [f"{about}\n{resource.text}"]
    if resource.blob is None:
        return [about]
    data = _decode(resource.blob)
    return [about, Attachment(resource.mime_type or "application/octet-stream", data)] if data else [about]


def _add_media(block: Content, parts: list[str | Attachment], images: list[Image], *, sees_images: bool) -> None:
    mime_type = (block.mime_type or "").lower()
    data = _decode(block.data or "")
    if data is None:
        parts.append(f"[The server sent {block.type} content that cannot be decoded.]")
    elif block.type == "image" and sees_images and (found := detect_image_type(data)) is not None:
        images.append(Image(found, data))
    else:
        parts.append(Attachment(mime_type or f"{block.type}/unknown", data))


def _decode(text: str) -> bytes | None:
    if len(text) > MAX_FILE_BYTES * 4 // 3:
        return None
    try:
        return base64.b64decode(text, validate=False)
    except (binascii.Error, ValueError):
        return None


def _describe_link(block: Content) -> str:
    facts = [block.title or block.name, block.mime_type, f"{block.size:g} bytes" if block.size is not None else None]
    about = ", ".join(one_line(fact, 200) for fact in facts if fact)
    link = f"[Link to the resource {one_line(block.uri or '', 500)}{f' ({about})' if about else ''}]"
    return f"{link} {one_line(block.description, 500)}" if block.description else link
