"""Pasting: dropped file names, and images from the system clipboard; and the ranges of text that keys delete."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shlex
import shutil
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import unquote, urlsplit

from textual.document._document import DocumentBase, Location

from kedge.protocol.bounds import MAX_IMAGE_BYTES

# A longer paste is shown as a chip, so that the prompt stays readable.
CHIP_LINES = 10
CHIP_CHARS = 2_000
_MAX_NAMES = 20  # of files dropped at once
_MAX_NAME_CHARS = 8_192

_READ_S = 5.0
# (variable that must be set, command that prints the image)
_IMAGE_COMMANDS = (
    ("WAYLAND_DISPLAY", ("wl-paste", "--no-newline", "--type", "image/png")),
    ("DISPLAY", ("xclip", "-selection", "clipboard", "-t", "image/png", "-o")),
    (None, ("pngpaste", "-")),
)


def is_long(text: str) -> bool:
    return len(text) > CHIP_CHARS or text.count("\n") >= CHIP_LINES


def find_dropped_files(text: str) -> list[Path]:
    """Return the files if the text is nothing but their names, as terminals paste them for dropped files."""
    text = text.strip()
    if not text or len(text) > _MAX_NAME_CHARS or not text.startswith(("/", "'/", '"/', "~/", "file://")):
        return []
    try:
        words = shlex.split(text)
    except ValueError:
        words = []
    for names in (words, [text]):  # the text itself: not every terminal quotes
        paths = [Path(unquote(urlsplit(name).path) if name.startswith("file://") else name) for name in names]
        if 0 < len(paths) <= _MAX_NAMES and all(_is_file(path) for path in paths):
            return paths
    return []


async def read_image(environ: Mapping[str, str]) -> bytes | None:
    """Return a PNG from this machine's clipboard, or None. Too large an image is cut one byte above the limit."""
    for variable, command in _IMAGE_COMMANDS:
        program = shutil.which(command[0], path=environ.get("PATH"))
        if program is None or (variable is not None and not environ.get(variable)):
            continue
        if data := await _read_output(program, *command[1:], environ=environ):
            return data
    return None


def program_environ(directory: Path | None) -> Mapping[str, str]:
    """Return the environment for programs: `PATH` without the workspace, where an agent could place one."""
    from kedge.files.environment import with_safe_path

    return os.environ if directory is None else with_safe_path(os.environ, directory)


def _is_file(path: Path) -> bool:
    try:
        return path.expanduser().is_file()
    except (OSError, ValueError, RuntimeError):
        return False


async def _read_output(*command: str, environ: Mapping[str, str]) -> bytes:
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


_LAST_WORD = re.compile(r"\S*\s*$")


def line_start(document: DocumentBase, cursor: Location) -> Location:
    """Return the start of the line; at the start, the end of the line before."""
    row, column = cursor
    return (row, 0) if column else _end_of_previous_line(document, row)


def line_end(document: DocumentBase, cursor: Location) -> Location:
    """Return the end of the line; at the end, the start of the next line."""
    row, column = cursor
    end = len(document.get_line(row))
    is_last = row + 1 >= document.line_count
    return (row, end) if column < end or is_last else (row + 1, 0)


def word_start(document: DocumentBase, cursor: Location) -> Location:
    row, column = cursor
    found = _LAST_WORD.search(document.get_line(row)[:column])
    return (row, found.start()) if found and column else _end_of_previous_line(document, row)


def _end_of_previous_line(document: DocumentBase, row: int) -> Location:
    return (row - 1, len(document.get_line(row - 1))) if row else (0, 0)
