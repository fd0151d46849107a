"""What is pasted, made fit for the editor: plain text, and the files that a terminal pastes the names of."""

from __future__ import annotations

import asyncio
import contextlib
import shlex
import shutil
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import unquote, urlsplit

from kedge.protocol.bounds import MAX_IMAGE_BYTES

# What is longer is shown in a word: the editor stays a place to write in.
CHIP_LINES = 10
CHIP_CHARS = 2_000
# What is longer goes as a file of its own: it would drown the words around it.
ATTACH_CHARS = 100_000
_MAX_NAMES = 20  # of files dropped at once
_MAX_NAME_CHARS = 8_192


def is_long(text: str) -> bool:
    return len(text) > CHIP_CHARS or text.count("\n") >= CHIP_LINES


def dropped_files(text: str) -> list[Path]:
    """The files whose names this is and nothing else: a terminal pastes them, quoted, for files dropped on it."""
    text = text.strip()
    if not text or len(text) > _MAX_NAME_CHARS or not text.startswith(("/", "'/", '"/', "~/", "file://")):
        return []
    try:
        words = shlex.split(text)
    except ValueError:
        words = []
    for names in (words, [text]):  # the name as it is: not every terminal quotes
        paths = [_path(name) for name in names]
        if 0 < len(paths) <= _MAX_NAMES and all(_is_file(path) for path in paths):
            return paths
    return []


def _path(name: str) -> Path:
    if name.startswith("file://"):
        return Path(unquote(urlsplit(name).path))
    return Path(name)


def _is_file(path: Path) -> bool:
    try:
        return path.expanduser().is_file()
    except (OSError, ValueError, RuntimeError):
        return False


# An image in the clipboard of the machine that the interface runs on, where a program is there that can read it.


_READ_S = 5.0
# One that is there, and has a display to ask: (variable that must be set, command)
_PROGRAMS = (
    ("WAYLAND_DISPLAY", ("wl-paste", "--no-newline", "--type", "image/png")),
    ("DISPLAY", ("xclip", "-selection", "clipboard", "-t", "image/png", "-o")),
    (None, ("pngpaste", "-")),
)


async def image(environ: Mapping[str, str]) -> bytes | None:
    """A PNG, or None. Too large a one comes with a byte too many: whoever attaches it will say so."""
    for variable, command in _PROGRAMS:
        program = shutil.which(command[0], path=environ.get("PATH"))
        if program is None or (variable is not None and not environ.get(variable)):
            continue
        if data := await _output(program, *command[1:], environ=environ):
            return data
    return None


async def _output(*command: str, environ: Mapping[str, str]) -> bytes:
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env=dict(environ),
        )
    except OSError:
        return b""
    assert process.stdout is not None
    data = bytearray()
    try:
        async with asyncio.timeout(_READ_S):
            while len(data) <= MAX_IMAGE_BYTES and (piece := await process.stdout.read(1 << 20)):
                data += piece
            if len(data) <= MAX_IMAGE_BYTES and await process.wait() != 0:
                return b""
    except TimeoutError:
        return b""
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    return bytes(data)
