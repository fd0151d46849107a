"""What comes before the prompt: standard input, when it is a pipe or a file. Never waited for on a terminal."""

from __future__ import annotations

import os
import stat
import time

from kedge.cli.options import UsageError
from kedge.client.waiting import Waiter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

SILENT_S = 30.0  # a script that forgot its standard input is told so before somebody goes for a coffee
# A little more than the server takes (P17: 4 MiB): what is too long is refused without being sent.
MAX_BYTES = 4 * 1024 * 1024

SILENT = (
    f"standard input is open but silent for {SILENT_S:.0f} s; close it with </dev/null, leave it out with --no-stdin, "
    "or give '-' to wait for it"
)


def read(waiter: Waiter, *, insists: bool, silent_s: float | None, note: Callable[[str], None]) -> str:
    """All of standard input, or nothing where there is none. `silent_s`: how long it may keep us waiting."""
    mode = os.fstat(0).st_mode
    if os.isatty(0):
        if insists:
            raise UsageError("'-' reads standard input, and that is this terminal; pipe something in, or leave it out")
        return ""
    if not insists and not (stat.S_ISFIFO(mode) or stat.S_ISREG(mode) or stat.S_ISSOCK(mode)):
        return ""
    data = _read_all(waiter, None if insists else silent_s)
    try:
        return data.decode()
    except UnicodeDecodeError:
        note("standard input is not all UTF-8 text; what is not became U+FFFD")
        return data.decode("utf-8", "replace")


def before(prompt: str, given: str) -> str:
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
