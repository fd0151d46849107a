"""The input of `kedge run`: standard input, attachments, a system prompt, a JSON schema. Raises `UsageError`."""

from __future__ import annotations

import json
import os
import select
import stat
import time

from kedge.cli.options import UsageError
from kedge.client.reconnect import Waiter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

# As in protocol/bounds.py, which explains them; larger files are refused before they are sent.
MAX_TEXT_BYTES = 4 * 1024 * 1024
MAX_IMAGE_BYTES = 5 * 1024 * 1024 // 4 * 3
MAX_ALL_BYTES = 22 * 1024 * 1024  # in base64 and with the prompt, still within the bound of a request's body
MAX_SCHEMA_BYTES = 256 * 1024
MAX_NAME_CHARS = 255
WRITER_S = 2.0  # for a writer to open a named pipe
POLL_S = 0.02

_TEXTS = {".md": "text/markdown", ".html": "text/html", ".csv": "text/csv", ".css": "text/css", ".xml": "text/xml"}


def read_attachments(paths: list[str]) -> list[dict[str, str]]:
    """The `attachments` of a submission."""
    from binascii import b2a_base64

    attachments: list[dict[str, str]] = []
    size = 0
    for path in paths:
        data = _read_file(path, "attach", MAX_TEXT_BYTES)
        size += len(data)
        if size > MAX_ALL_BYTES:
            raise UsageError(f"The attached files exceed {MAX_ALL_BYTES >> 20} MiB in total. Attach fewer")
        content = b2a_base64(data, newline=False).decode()
        attachments.append({"file_name": _name(path), "mime_type": _find_mime_type(path, data), "content": content})
    return attachments


def read_system_prompt(path: str) -> str:
    text = _decode_text(path, _read_file(path, "use", MAX_TEXT_BYTES))
    if not text.strip():
        raise UsageError(f"Could not use {path}: it is empty")
    return text


def read_output_schema(path: str) -> dict[str, Any]:
    text = _decode_text(path, _read_file(path, "use", MAX_SCHEMA_BYTES))
    try:
        schema = json.loads(text, parse_constant=_reject_constant)
    except RecursionError:
        raise UsageError(f"Could not use {path}: it is nested too deeply") from None
    except ValueError as error:
        raise UsageError(f"Could not use {path}: invalid JSON ({error})") from None
    if not isinstance(schema, dict):
        raise UsageError(f'Could not use {path}: a JSON schema must be an object, like {{"type": "object"}}')
    return schema  # pyright: ignore[reportUnknownVariableType]


def _read_file(path: str, purpose: str, max_bytes: int) -> bytes:
    """Read a file or a pipe. Raises `UsageError` if it is longer than `max_bytes`."""
    pieces: list[bytes] = []
    size = 0
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # opens a named pipe that has no writer yet
        try:
            for piece in _read_pieces(fd):
                pieces.append(piece)
                size += len(piece)
                if size > max_bytes:
                    break
        finally:
            os.close(fd)
    except (OSError, ValueError) as error:  # ValueError: a null byte in the path, or no writer
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise UsageError(f"Could not {purpose} {_name(path)}: {why}") from None
    if size > max_bytes:
        raise UsageError(
            f"Could not {purpose} {_name(path)}: over {_format_size(max_bytes)}. Name it in the prompt instead"
        )
    return b"".join(pieces)


def _read_pieces(fd: int) -> Iterator[bytes]:
    """Yield the content of a file or a pipe. A pipe with a writer is read to its end, however long that takes."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    has_opened = not stat.S_ISFIFO(os.fstat(fd).st_mode)  # a pipe has once it has a writer
    until = time.monotonic() + WRITER_S
    while True:
        try:
            piece = os.read(fd, 1024 * 1024)
        except BlockingIOError:
            has_opened = True
            poll.poll()
            continue
        if piece:
            has_opened = True
            yield piece
        elif has_opened or any(state & select.POLLHUP and not state & select.POLLIN for _, state in poll.poll(0)):
            return  # all writers have closed it
        elif time.monotonic() > until:
            raise ValueError("nothing writes to this pipe")
        else:
            time.sleep(POLL_S)


def _find_mime_type(path: str, data: bytes) -> str:
    from kedge.protocol.bounds import detect_image_type

    if image := detect_image_type(data):
        if len(data) > MAX_IMAGE_BYTES:
            raise UsageError(f"Could not attach {_name(path)}: over {_format_size(MAX_IMAGE_BYTES)}. Scale it down")
        return image
    _decode_text(path, data, "attach", "neither UTF-8 text nor a PNG, JPEG, GIF or WebP image")
    return _TEXTS.get(os.path.splitext(path)[1].lower(), "text/plain")


def _decode_text(path: str, data: bytes, purpose: str = "use", problem: str = "not UTF-8 text") -> str:
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise UsageError(f"Could not {purpose} {_name(path)}: {problem}")
    return text


def _name(path: str) -> str:
    """The path as it was given. Bytes that are not UTF-8 become U+FFFD."""
    return os.fsencode(path).decode("utf-8", "replace")[-MAX_NAME_CHARS:]


def _format_size(size: int) -> str:
    return f"{size >> 10} KiB" if size < 1 << 20 else f"{size / (1 << 20):.3g} MiB"


def _reject_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


SILENT_S = 30.0  # then a script that left its standard input open gets an error
MAX_STDIN_BYTES = 4 * 1024 * 1024  # the server's bound for a prompt (P17)

SILENT = (
    f"Standard input is open, but nothing was written to it for {SILENT_S:.0f} s. Close it with </dev/null, "
    "skip it with --no-stdin, or pass '-' to wait for it"
)


def read_stdin(waiter: Waiter, *, insists: bool, has_prompt: bool, note: Callable[[str], None]) -> str:
    """Return all of standard input if it is a pipe or a file, else "". With a prompt, waits at most `SILENT_S`."""
    mode = os.fstat(0).st_mode
    if os.isatty(0):
        if insists:
            raise UsageError("'-' reads standard input, which is this terminal. Pipe something in, or leave it out")
        return ""
    if not insists and not (stat.S_ISFIFO(mode) or stat.S_ISREG(mode) or stat.S_ISSOCK(mode)):
        return ""
    data = _read_all(waiter, SILENT_S if has_prompt and not insists else None)
    try:
        return data.decode()
    except UnicodeDecodeError:
        note("Standard input is not valid UTF-8. Invalid bytes were replaced by U+FFFD.")
        return data.decode("utf-8", "replace")


def join_prompt(prompt: str, piped: str) -> str:
    """Put standard input before the prompt, with a blank line between them; after one that begins with `/NAME`.

    Such a prompt may name a command, and what follows are its arguments.
    """
    if not piped.strip():
        return prompt
    if not prompt.strip():
        return piped
    if _begins_with_name(prompt):
        return f"{prompt}\n\n{piped}"
    return f"{piped}{'' if piped.endswith(chr(10)) else chr(10)}\n{prompt}"


def _begins_with_name(prompt: str) -> bool:
    """Return whether a prompt begins like `/review`, and not like `/etc/hosts`."""
    word = prompt.split(maxsplit=1)[0]
    return word[0] == "/" and word[1:2].isalnum() and "/" not in word[1:]


def _read_all(waiter: Waiter, silent_s: float | None) -> bytes:
    pieces: list[bytes] = []
    size = 0
    last_at = time.monotonic()
    while size <= MAX_STDIN_BYTES:
        left_s = 3600.0 if silent_s is None else last_at + silent_s - time.monotonic()
        if not waiter.wait(0, left_s):
            if silent_s is not None and time.monotonic() >= last_at + silent_s:
                raise UsageError(SILENT)
            continue
        piece = os.read(0, 1024 * 1024)
        if not piece:
            return b"".join(pieces)
        pieces.append(piece)
        size += len(piece)
        last_at = time.monotonic()
    raise UsageError(
        f"Standard input exceeds {MAX_STDIN_BYTES >> 20} MiB. Save it to a file and name the file in the prompt"
    )
