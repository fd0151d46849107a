"""What is said to the terminal beside the picture (title, notifications, progress), and what it is asked at first."""

from __future__ import annotations

import os
import re
import select
import sys
import time
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, TextIO, cast

from textual.drivers.linux_driver import LinuxDriver

from kedge.protocol.text_safety import inside_escape

Notify = Literal["auto", "bell", "off"]
ASK_S = 2.0  # far or busy terminals take long; an answer that nobody waits for any more would be typed into the editor
_BACKGROUND = re.compile(rb"\x1b\]11;rgba?:([0-9a-fA-F/]+)(?:\x07|\x1b\\)")
_ATTRIBUTES = re.compile(rb"\x1b\[\?[0-9;]*c")


class Told(NamedTuple):
    """What the terminal said of itself."""

    is_light: bool | None  # None: it did not say
    typed: bytes = b""  # what a person typed meanwhile


SILENT = Told(None)


def ask(env: Mapping[str, str]) -> Told:
    """Ask for the background. Every terminal answers the second question, so that the first need not be waited for."""
    if env.get("TERM", "dumb") == "dumb" or not sys.stdin.isatty() or not sys.stdout.isatty():
        return Told(_by_environment(env))
    import termios
    import tty

    fd = sys.stdin.fileno()
    before = termios.tcgetattr(fd)
    heard = b""
    try:
        tty.setcbreak(fd, termios.TCSANOW)
        os.write(sys.stdout.fileno(), b"\x1b]11;?\x1b\\\x1b[c")
        until = time.monotonic() + ASK_S
        while not _ATTRIBUTES.search(heard) and (left_s := until - time.monotonic()) > 0:
            if not select.select([fd], [], [], left_s)[0]:
                break
            heard += os.read(fd, 4096)
    except OSError:
        return Told(_by_environment(env))
    finally:
        termios.tcsetattr(fd, termios.TCSANOW, before)
    found = _BACKGROUND.search(heard)
    is_light = _is_light(found[1]) if found else None
    typed = _ATTRIBUTES.sub(b"", _BACKGROUND.sub(b"", heard))
    return Told(_by_environment(env) if is_light is None else is_light, typed)


def _is_light(rgb: bytes) -> bool | None:
    try:
        red, green, blue = (int(each[:2].ljust(2, each[:1]), 16) for each in rgb.split(b"/")[:3])
    except ValueError:
        return None
    return red * 299 + green * 587 + blue * 114 > 127_500


def _by_environment(env: Mapping[str, str]) -> bool | None:
    """`COLORFGBG=0;15`: set by rxvt, Konsole and others."""
    background = env.get("COLORFGBG", "").rpartition(";")[2]
    return int(background) in (7, 15) if background.isdecimal() else None


def title(text: str) -> str:
    return f"\x1b]2;{inside_escape(text)[:200]}\x07"


def progress(state: Literal["none", "busy", "error"]) -> str:
    """OSC 9;4: in the tab or the task bar, where the terminal has one."""
    return {"none": "\x1b]9;4;0;0\x07", "busy": "\x1b]9;4;3;0\x07", "error": "\x1b]9;4;2;100\x07"}[state]


def shows_progress(env: Mapping[str, str]) -> bool:
    """Elsewhere OSC 9 is a notification, and "4;3" would be one's text."""
    return bool(env.get("WT_SESSION") or env.get("ConEmuANSI") == "ON" or _program(env) in ("ghostty", "wezterm"))


def notification(head: str, body: str, how: Notify, env: Mapping[str, str]) -> str:
    """In the way that this terminal knows; a bell is understood by all."""
    head, body = inside_escape(head)[:100], inside_escape(body)[:300]
    if how == "off":
        return ""
    if how == "bell":
        return "\a"
    match _program(env):
        case "kitty":
            return f"\x1b]99;i=kedge:d=0:p=title;{head}\x1b\\\x1b]99;i=kedge:d=1:p=body;{body}\x1b\\"
        case "rxvt" | "foot" | "ghostty" | "vte":
            return f"\x1b]777;notify;{head.replace(';', ',')};{body}\x1b\\"
        case "iterm" | "wezterm":
            return f"\x1b]9;{head}: {body}\x07"
        case _:
            return "\a"


def _program(env: Mapping[str, str]) -> str:
    term, program = env.get("TERM", ""), env.get("TERM_PROGRAM", "").lower()
    if env.get("TMUX"):
        return "tmux"  # it passes nothing on but the bell
    for name, is_it in (
        ("kitty", "kitty" in term or bool(env.get("KITTY_WINDOW_ID"))),
        ("ghostty", program == "ghostty"),
        ("wezterm", program == "wezterm"),
        ("iterm", program == "iterm.app"),
        ("foot", term.startswith("foot")),
        ("rxvt", term.startswith("rxvt")),
        ("vte", bool(env.get("VTE_VERSION"))),
    ):
        if is_it:
            return name
    return ""


# The way to the terminal, also to one that is gone: what is written to a closed window is lost, nothing waits.


class TerminalDriver(LinuxDriver):
    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        # Textual's writer would die of the first error, and whoever writes then waits for it without end.
        self._file = cast(TextIO, _Lossy(self._file))


class _Lossy:
    """All that is used of a file, without its errors: a hang-up is told by its signal."""

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def write(self, text: str) -> int:
        try:
            return self._file.write(text)
        except OSError:
            return len(text)

    def flush(self) -> None:
        try:
            self._file.flush()
        except OSError:
            pass

    def fileno(self) -> int:
        return self._file.fileno()
