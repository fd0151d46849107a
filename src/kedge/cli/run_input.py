"""The files that `kedge run` is given: attachments, a system prompt, a schema. What is wrong with one is a line."""

from __future__ import annotations

import binascii
import json
import os
import select
import stat
import time

from kedge.cli.options import UsageError
from kedge.client.waiter import Waiter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

# As in protocol/bounds.py, which knows why; what is too large is refused without being sent.
MAX_TEXT_BYTES = 4 * 1024 * 1024
MAX_IMAGE_BYTES = 5 * 1024 * 1024 // 4 * 3
MAX_ALL_BYTES = 22 * 1024 * 1024  # in base64, and with the prompt, that is still within the body's bound
MAX_SCHEMA_BYTES = 256 * 1024
MAX_NAME_CHARS = 255
WRITER_S = 2.0  # for whoever writes to a named pipe to open it
LOOK_AGAIN_S = 0.02

_TEXTS = {".md": "text/markdown", ".html": "text/html", ".csv": "text/csv", ".css": "text/css", ".xml": "text/xml"}


def attachments(paths: list[str]) -> list[dict[str, str]]:
    made: list[dict[str, str]] = []
    size = 0
    for path in paths:
        data = _read(path, "attach", MAX_TEXT_BYTES)
        size += len(data)
        if size > MAX_ALL_BYTES:
            raise UsageError(f"the attached files are over {MAX_ALL_BYTES >> 20} MiB together; attach fewer")
        content = binascii.b2a_base64(data, newline=False).decode()
        made.append({"file_name": _name(path), "mime_type": _mime_type(path, data), "content": content})
    return made


def system_prompt(path: str) -> str:
    text = _text(path, _read(path, "use", MAX_TEXT_BYTES))
    if not text.strip():
        raise UsageError(f"cannot use {path}: it is empty")
    return text


def output_schema(path: str) -> dict[str, Any]:
    text = _text(path, _read(path, "use", MAX_SCHEMA_BYTES))
    try:
        schema = json.loads(text, parse_constant=_no_json)
    except RecursionError:
        raise UsageError(f"cannot use {path}: it is nested too deeply") from None
    except ValueError as error:
        raise UsageError(f"cannot use {path}: it is not JSON ({error})") from None
    if not isinstance(schema, dict):
        raise UsageError(f'cannot use {path}: a JSON schema is an object, like {{"type": "object"}}')
    return schema  # pyright: ignore[reportUnknownVariableType]  (whatever JSON holds)


def _read(path: str, what: str, most: int) -> bytes:
    """All of a file, also of a pipe; not more than is of use."""
    pieces: list[bytes] = []
    size = 0
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a named pipe opens without a writer, too
        try:
            for piece in _pieces(fd):
                pieces.append(piece)
                size += len(piece)
                if size > most:
                    break
        finally:
            os.close(fd)
    except (OSError, ValueError) as error:  # a zero byte in the name is no system's fault
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise UsageError(f"cannot {what} {_name(path)}: {why}") from None
    if size > most:
        raise UsageError(f"cannot {what} {_name(path)}: it is over {_mib(most)}; name it in the prompt instead")
    return b"".join(pieces)


def _pieces(fd: int) -> Iterator[bytes]:
    """Of a file, and of a pipe: one that somebody writes to is read to its end, however long that takes."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    is_open = not stat.S_ISFIFO(os.fstat(fd).st_mode)  # a pipe is once somebody writes to it
    until = time.monotonic() + WRITER_S
    while True:
        try:
            piece = os.read(fd, 1024 * 1024)
        except BlockingIOError:
            is_open = True
            poll.poll()
            continue
        if piece:
            is_open = True
            yield piece
        elif is_open or any(state & select.POLLHUP and not state & select.POLLIN for _, state in poll.poll(0)):
            return  # its writers have left
        elif time.monotonic() > until:
            raise ValueError("it is a pipe that nobody writes to")
        else:
            time.sleep(LOOK_AGAIN_S)


def _mime_type(path: str, data: bytes) -> str:
    from kedge.protocol.images import detect_image_type  # only for those who attach files

    if image := detect_image_type(data):
        if len(data) > MAX_IMAGE_BYTES:
            raise UsageError(f"cannot attach {_name(path)}: it is over {_mib(MAX_IMAGE_BYTES)}; scale it down")
        return image
    _text(path, data, "attach", " nor a png, jpeg, gif or webp image")
    return _TEXTS.get(os.path.splitext(path)[1].lower(), "text/plain")


def _text(path: str, data: bytes, what: str = "use", nor: str = "") -> str:
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        why = f"it is neither UTF-8 text{nor}; name it in the prompt instead" if nor else "it is not UTF-8 text"
        raise UsageError(f"cannot {what} {_name(path)}: {why}")
    return text


def _name(path: str) -> str:
    """As it was given: that says most. Bytes that are no UTF-8 become U+FFFD."""
    return os.fsencode(path).decode("utf-8", "replace")[-MAX_NAME_CHARS:]


def _mib(size: int) -> str:
    return f"{size >> 10} KiB" if size < 1 << 20 else f"{size / (1 << 20):.3g} MiB"


def _no_json(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


SILENT_S = 30.0  # a script that forgot its standard input is told so before somebody goes for a coffee
# A little more than the server takes (P17: 4 MiB): what is too long is refused without being sent.
MAX_BYTES = 4 * 1024 * 1024

SILENT = (
    f"standard input is open but silent for {SILENT_S:.0f} s; close it with </dev/null, leave it out with --no-stdin, "
    "or give '-' to wait for it"
)


def read_stdin(waiter: Waiter, *, insists: bool, has_prompt: bool, note: Callable[[str], None]) -> str:
    """All of standard input, or nothing where there is none. With a prompt it may be silent for `SILENT_S` only."""
    mode = os.fstat(0).st_mode
    if os.isatty(0):
        if insists:
            raise UsageError("'-' reads standard input, and that is this terminal; pipe something in, or leave it out")
        return ""
    if not insists and not (stat.S_ISFIFO(mode) or stat.S_ISREG(mode) or stat.S_ISSOCK(mode)):
        return ""
    data = _read_all(waiter, SILENT_S if has_prompt and not insists else None)
    try:
        return data.decode()
    except UnicodeDecodeError:
        note("standard input is not all UTF-8 text; what is not became U+FFFD")
        return data.decode("utf-8", "replace")


def join_prompt(prompt: str, given: str) -> str:
    """Standard input comes first, with a blank line between."""
    if not given.strip():
        return prompt
    if not prompt.strip():
        return given
    return f"{given}{'' if given.endswith(chr(10)) else chr(10)}\n{prompt}"


def _read_all(waiter: Waiter, silent_s: float | None) -> bytes:
    pieces: list[bytes] = []
    size = 0
    heard_at = time.monotonic()
    while size <= MAX_BYTES:
        left_s = 3600.0 if silent_s is None else heard_at + silent_s - time.monotonic()
        if not waiter.wait(0, left_s):
            if silent_s is not None and time.monotonic() >= heard_at + silent_s:
                raise UsageError(SILENT)
            continue
        piece = os.read(0, 1024 * 1024)
        if not piece:
            return b"".join(pieces)
        pieces.append(piece)
        size += len(piece)
        heard_at = time.monotonic()
    raise UsageError(
        f"standard input is over {MAX_BYTES >> 20} MiB; put it into a file and name the file in the prompt"
    )
