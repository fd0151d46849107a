"""Files that go with a prompt: checked by the bounds of the protocol before anything is sent, and refused in a line."""

from __future__ import annotations

import re
import stat
from collections.abc import Iterable
from pathlib import Path

from kedge.protocol.bounds import IMAGE_TYPES, MAX_ATTACHMENTS, MAX_PROMPT_BYTES, check_attachments
from kedge.protocol.errors import KedgeError
from kedge.protocol.runs import Attachment

# Of all together: the body holds them in base64, beside the prompt and the environment.
MAX_ATTACHED_BYTES = 20 * 1024 * 1024

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
    """A file that cannot go with a prompt; the text says why, for the person."""


def is_attachable(path: Path) -> bool:
    return path.suffix.lower() in _TYPES


def read(path: Path) -> Attachment:
    """An image or a PDF. Raises `AttachmentRejected`."""
    try:
        path = path.expanduser()
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):
            raise AttachmentRejected(f"{path.name} is not a file")
        if found.st_size > MAX_ATTACHED_BYTES:
            raise AttachmentRejected(
                f"{path.name} is over {MAX_ATTACHED_BYTES >> 20} MiB, the most that goes with a prompt"
            )
        content = path.read_bytes()
    except (OSError, ValueError, RuntimeError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise AttachmentRejected(f"{path.name} cannot be read: {why}") from error
    return checked(path.name, _type_of(path.suffix, content), content)


def checked(name: str, mime_type: str, content: bytes) -> Attachment:
    attachment = Attachment(name[-255:] or "unnamed", mime_type, content)
    try:
        check_attachments([attachment])
    except KedgeError as error:
        raise AttachmentRejected(error.message) from error
    return attachment


def pasted_text(number: int, text: str) -> Attachment:
    """A paste that is too long to stand in a prompt. Raises `AttachmentRejected`."""
    if len(content := text.encode()) > MAX_PROMPT_BYTES:
        raise AttachmentRejected(
            f"what was pasted is over {MAX_PROMPT_BYTES >> 20} MiB; put it into a file and name that"
        )
    return checked(f"pasted-{number}.txt", "text/plain", content)


def check_room(attached: Iterable[Attachment], more: Attachment) -> None:
    """Raises `AttachmentRejected` if it is too much together."""
    sizes = [len(each.content) for each in attached]
    if len(sizes) >= MAX_ATTACHMENTS:
        raise AttachmentRejected(f"a prompt takes {MAX_ATTACHMENTS} attachments, and has them")
    if sum(sizes) + len(more.content) > MAX_ATTACHED_BYTES:
        raise AttachmentRejected(
            f"with {more.file_name} the attachments would be over {MAX_ATTACHED_BYTES >> 20} MiB together"
        )


def mentioned(text: str, directory: Path, attached: Iterable[Attachment] = ()) -> list[Attachment]:
    """The images and PDFs that a prompt names with an `@`. What is something else is the agent's to look at."""
    found: list[Attachment] = []
    seen: set[Path] = set()
    for match in MENTION.finditer(text):
        name = match[1] or match[2]
        for path in (directory / name, directory / name.rstrip(".,;:!?)]}")):
            if path in seen or not is_attachable(path):
                continue
            seen.add(path)
            try:
                attachment = read(path)
                check_room([*attached, *found], attachment)
            except AttachmentRejected:
                continue  # its name stays in the prompt: the agent will see what is the matter with it
            found.append(attachment)
            break
    return found


def _type_of(suffix: str, content: bytes) -> str:
    """What an image is, whatever it is called."""
    for mime_type, starts in IMAGE_TYPES.items():
        if content.startswith(starts):
            return mime_type
    return _TYPES.get(suffix.lower(), "application/octet-stream")
