"""Files attached to a prompt: read, and checked against the protocol's limits before anything is sent."""

from __future__ import annotations

import re
import stat
from collections.abc import Iterable
from pathlib import Path

from kedge.protocol.bounds import MAX_ATTACHMENTS, MAX_PROMPT_BYTES, detect_image_type
from kedge.protocol.errors import KedgeError
from kedge.protocol.runs import Attachment
from kedge.protocol.validation import check_attachments

MAX_ATTACHED_BYTES = 20 * 1024 * 1024  # of all together: the request's body has them in base64

_TYPES = {
    ".png": "image/png",
    ".jpg": "image/jpeg",
    ".jpeg": "image/jpeg",
    ".gif": "image/gif",
    ".webp": "image/webp",
    ".pdf": "application/pdf",
}
MENTION = re.compile(r'(?<!\S)@(?:"([^"\n]+)"|(\S+))')


class AttachmentRejected(Exception):
    """A file cannot be attached; the text says why, for the user."""


def is_attachable(path: Path) -> bool:
    return path.suffix.lower() in _TYPES


def read_attachment(path: Path) -> Attachment:
    """Read an image or a PDF. Raises `AttachmentRejected`."""
    try:
        path = path.expanduser()
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise AttachmentRejected(f"{path.name} is not a file")
        if status.st_size > MAX_ATTACHED_BYTES:
            raise AttachmentRejected(f"{path.name} is larger than {MAX_ATTACHED_BYTES >> 20} MiB")
        content = path.read_bytes()
    except (OSError, ValueError, RuntimeError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise AttachmentRejected(f"{path.name} cannot be read: {why}") from error
    # An image's first bytes are trusted before its file name.
    mime_type = detect_image_type(content) or _TYPES.get(path.suffix.lower(), "application/octet-stream")
    return make_attachment(path.name, mime_type, content)


def make_attachment(name: str, mime_type: str, content: bytes) -> Attachment:
    """Raises `AttachmentRejected`."""
    attachment = Attachment(name[-255:] or "unnamed", mime_type, content)
    try:
        check_attachments([attachment])
    except KedgeError as error:
        raise AttachmentRejected(error.message) from error
    return attachment


def make_text_attachment(number: int, text: str) -> Attachment:
    """Make a file of a paste that is too long for a prompt. Raises `AttachmentRejected`."""
    if len(content := text.encode()) > MAX_PROMPT_BYTES:
        raise AttachmentRejected(f"the pasted text is over {MAX_PROMPT_BYTES >> 20} MiB. Save it to a file instead.")
    return make_attachment(f"pasted-{number}.txt", "text/plain", content)


def check_room(attached: Iterable[Attachment], more: Attachment) -> None:
    """Raises `AttachmentRejected` if it is too much together."""
    sizes = [len(each.content) for each in attached]
    if len(sizes) >= MAX_ATTACHMENTS:
        raise AttachmentRejected(f"a prompt can have at most {MAX_ATTACHMENTS} attachments")
    if sum(sizes) + len(more.content) > MAX_ATTACHED_BYTES:
        raise AttachmentRejected(f"with {more.file_name}, attachments would exceed {MAX_ATTACHED_BYTES >> 20} MiB")


def read_mentioned(text: str, directory: Path, attached: Iterable[Attachment] = ()) -> list[Attachment]:
    """Read the images and PDFs that a prompt names with `@`. Other files are left to the agent's tools."""
    found: list[Attachment] = []
    seen: set[Path] = set()
    for match in MENTION.finditer(text):
        name = match[1] or match[2]
        for path in (directory / name, directory / name.rstrip(".,;:!?)]}")):
            if path in seen or not is_attachable(path):
                continue
            seen.add(path)
            try:
                attachment = read_attachment(path)
                check_room([*attached, *found], attachment)
            except AttachmentRejected:
                continue  # the prompt still names it: the agent can find out what is wrong
            found.append(attachment)
            break
    return found
