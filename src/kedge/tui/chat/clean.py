"""Text from files, tools and models, made fit for a terminal: nothing in it moves a cursor, rings or hides."""

from __future__ import annotations

import re

_ESCAPES = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # CSI: colours, cursor
    r"|\x9b[0-?]*[ -/]*[@-~]"
    r"|\x1b[\]PX^_][^\x07\x1b\n]*(?:\x07|\x1b\\)?"  # OSC, DCS and their like
    r"|\x1b[ -/]*[0-~]"
)
_DIRECTIONS = "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # show one thing, mean another
_UNSEEN = "\u00ad\u200b\u2060-\u2064\ufeff\U000e0000-\U000e007f"
_ODD = re.compile(f"[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff{_DIRECTIONS}{_UNSEEN}]")
_UNSEEN_ONE = re.compile(f"[{_UNSEEN}]")
_OVERWRITTEN = re.compile(r"[^\n]*\r(?=[^\n])")  # a progress bar writes its line again and again

TAB = 4


def clean(text: str, *, tab: int = TAB) -> str:
    """Line ends stay, tabs become spaces, escape sequences go, and what is left of control characters is shown."""
    if _ODD.search(text) is None:
        return text
    text = text.replace("\r\n", "\n")
    if "\x1b" in text or "\x9b" in text:
        text = _ESCAPES.sub("", text)
    if "\r" in text:
        text = _OVERWRITTEN.sub("", text).replace("\r", "")
    if "\t" in text:
        text = text.expandtabs(tab)
    return _ODD.sub(_shown, text)


def clean_line(text: str) -> str:
    """As `clean`, on one line: what was on several is set apart by spaces."""
    return clean(text.replace("\r", "\n")).replace("\n", " ")


def _shown(match: re.Match[str]) -> str:
    character = match[0]
    code = ord(character)
    if code < 0x20:
        return chr(0x2400 + code)
    if code == 0x7F:
        return "\u2421"
    if character in "\x85\u2028\u2029":
        return " "
    return "" if _UNSEEN_ONE.match(character) else "\ufffd"
