"""Terminal escape sequences (title, notifications, progress), and the query for the terminal's background."""

from __future__ import annotations

import os
import re
import select
import sys
import time
from collections.abc import Mapping
from typing import Literal, NamedTuple

from kedge.protocol.text_safety import inside_escape

Notify = Literal["auto", "bell", "off"]
QUERY_S = 2.0  # for slow terminals; a later answer would be typed into the editor
_BACKGROUND = re.compile(rb"\x1b\]11;rgba?:([0-9a-fA-F/]+)(?:\x07|\x1b\\)")
_ATTRIBUTES = re.compile(rb"\x1b\[\?[0-9;]*c")


class TerminalInfo(NamedTuple):
    """The terminal's answer to `query_terminal`."""

    is_light: bool | None  # None: unknown
    typed: bytes = b""  # by the user meanwhile


UNKNOWN = TerminalInfo(None)


def query_terminal(env: Mapping[str, str]) -> TerminalInfo:
    """Query the background color, then the device attributes, which every terminal answers: that ends the wait."""
    if env.get("TERM", "dumb") == "dumb" or not sys.stdin.isatty() or not sys.stdout.isatty():
        return TerminalInfo(_is_light_by_env(env))
    import termios
    import tty

    fd = sys.stdin.fileno()
    before = termios.tcgetattr(fd)
    answer = b""
    try:
        tty.setcbreak(fd, termios.TCSANOW)
        os.write(sys.stdout.fileno(), b"\x1b]11;?\x1b\\\x1b[c")
        until = time.monotonic() + QUERY_S
        while not _ATTRIBUTES.search(answer) and (left_s := until - time.monotonic()) > 0:
            if not select.select([fd], [], [], left_s)[0]:
                break
            answer += os.read(fd, 4096)
    except OSError:
        return TerminalInfo(_is_light_by_env(env))
    finally:
        termios.tcsetattr(fd, termios.TCSANOW, before)
    found = _BACKGROUND.search(answer)
    is_light = _is_light(found[1]) if found else None
    typed = _ATTRIBUTES.sub(b"", _BACKGROUND.sub(b"", answer))
    return TerminalInfo(_is_light_by_env(env) if is_light is None else is_light, typed)


def _is_light(rgb: bytes) -> bool | None:
    try:
        red, green, blue = (int(each[:2].ljust(2, each[:1]), 16) for each in rgb.split(b"/")[:3])
    except ValueError:
        return None
    return red * 299 + green * 587 + blue * 114 > 127_500


def _is_light_by_env(env: Mapping[str, str]) -> bool | None:
    """Read `COLORFGBG=0;15`, which rxvt, Konsole and others set."""
    background = env.get("COLORFGBG", "").rpartition(";")[2]
    return int(background) in (7, 15) if background.isdecimal() else None


def title(text: str) -> str:
    return f"\x1b]2;{inside_escape(text)[:200]}\x07"


def progress(env: Mapping[str, str], *, is_busy: bool) -> str:
    """OSC 9;4: progress in the tab or task bar. In other terminals OSC 9 is a notification, with "4;3" as its text."""
    if env.get("WT_SESSION") or env.get("ConEmuANSI") == "ON" or _program(env) in ("ghostty", "wezterm"):
        return f"\x1b]9;4;{3 if is_busy else 0};0\x07"
    return ""


def notification(head: str, body: str, how: Notify, env: Mapping[str, str]) -> str:
    """Return the notification sequence of this terminal; a bell if it has none."""
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
        return "tmux"  # passes on only the bell
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
