"""An image in the clipboard of the machine that the interface runs on, where a program is there that can read it."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import Mapping

from kedge.protocol.bounds import MAX_IMAGE_BYTES

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
