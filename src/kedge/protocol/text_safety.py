"""Text from models, files, programs and servers, made safe to show: it cannot drive a terminal or hide what it says.

Every policy is here. They share one set of marks: `␛` for a control character, `\\x9b` for a C1 control or a byte that
is not UTF-8, `⟨U+202E⟩` for a character that changes the direction or cannot be seen. Spaces of any width and the
joiners inside of words and emoji stay as they are.

    visible, visible_line  what a person decides about, and whatever else the interface shows: nothing is removed
    program_output         what a program printed: its colors and overwritten lines go, the rest as above
    for_terminal           what a command prints on a terminal; a pipe or a file gets the text itself
    json_for_terminal      the same for JSON, which stays valid and means the same
    inside_escape          a title or a notification, which stands inside of an escape sequence
"""

from __future__ import annotations

import re

TAB = 4
OUTPUT_TAB = 8  # what programs count on
MOST_BLANK_LINES = 3  # in a row; more are counted instead of shown
MOST_SPACES = 80

_DIRECTIONS = "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"
_UNSEEN = (
    "\u00ad\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b\u2028\u2029\u2060-\u2065\u206a-\u206f\u3164\ufeff\uffa0"
    "\ufff0-\ufffb\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e00ff\U000e01f0-\U000e0fff"
)
_JOINERS = "\u200c\u200d"  # people write them between letters, and emoji are made with them
_SELECTORS = "\ufe00-\ufe0f\U000e0100-\U000e01ef"  # choose how the character before them looks
# After these a joiner or a selector does nothing but hide: Latin, Greek, Cyrillic and what is no letter; ASCII.
_NOT_JOINED = "\x00-\u058f\ud800-\udfff"
_NOT_VARIED = "\x00-\x9f\ud800-\udfff"
# Patterns are compiled on first use: most text needs none, and every command imports this.
_UNSAFE = (
    f"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff{_DIRECTIONS}{_UNSEEN}]"
    f"|(?<=[{_NOT_JOINED}{_JOINERS}])[{_JOINERS}]"
    f"|(?<=[{_NOT_VARIED}{_SELECTORS}])[{_SELECTORS}](?!\u20e3)"
)
_ESCAPES = (
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # CSI: colors, cursor
    r"|\x9b[0-?]*[ -/]*[@-~]"
    r"|\x1b[\]PX^_][^\x07\x1b\n]*(?:\x07|\x1b\\)?"  # OSC, DCS and their like
    r"|\x1b[ -/]*[0-~]"
)
_OVERWRITTEN = r"[^\n]*\r(?=[^\n])"  # a progress bar writes its line again and again
_BLANK_LINES = rf"(?m)^(?:[^\S\n]*\n){{{MOST_BLANK_LINES + 1},}}"
_SPACES = rf"[^\S\n]{{{MOST_SPACES + 1},}}"


def visible(text: str) -> str:
    """Every control and invisible character becomes a mark; line ends stay, tabs become spaces."""
    if _is_plain(text):
        return text
    return _mark(text.expandtabs(TAB) if "\t" in text else text)


def visible_line(text: str) -> str:
    """As `visible`, on one line: what was on several is set apart by spaces."""
    return visible(text.replace("\r\n", "\n")).replace("\n", " ")


def without_blank_runs(text: str) -> str:
    """Long runs of blank lines or spaces become a mark with their number, so that they push nothing out of sight."""
    text = re.sub(_BLANK_LINES, lambda match: blank_lines_mark(match[0].count("\n")) + "\n", text)
    return re.sub(_SPACES, lambda match: f"⋯ {len(match[0])} spaces ⋯", text)


def blank_lines_mark(number: int) -> str:
    return f"⋯ {number} blank lines"


def program_output(text: str) -> str:
    """What a terminal would show of it in the end, without colors, and marks for what is left of control characters."""
    if _is_plain(text):
        return text
    text = text.replace("\r\n", "\n")
    if "\x1b" in text or "\x9b" in text:
        text = re.sub(_ESCAPES, "", text)
    if "\r" in text:
        text = re.sub(_OVERWRITTEN, "", text).replace("\r", "")
    return _mark(text.expandtabs(OUTPUT_TAB))


def for_terminal(text: str) -> str:
    """Marks as in `visible`; line ends and tabs stay."""
    return text if _is_plain(text) else _mark(text.replace("\r\n", "\n"))


def json_for_terminal(text: str) -> str:
    """JSON with `\\uXXXX` in place of each character that would be marked."""
    return text if _is_plain(text) else re.sub(_UNSAFE, _escape, text)


def inside_escape(text: str) -> str:
    """One line without anything that could end the sequence; spaces take the place of the rest."""
    return "".join(char if char.isprintable() else " " for char in text).strip()


def has_control(text: str) -> bool:
    """Whether there is a C0 or C1 control other than tab and newline in it, or DEL."""
    return any((char < " " and char not in "\t\n") or "\x7f" <= char <= "\x9f" for char in text)


def _is_plain(text: str) -> bool:
    return text.isascii() and text.replace("\n", "").isprintable()


def _mark(text: str) -> str:
    return re.sub(_UNSAFE, _mark_one, text)


def _mark_one(match: re.Match[str]) -> str:
    code = ord(match[0])
    if code < 0x20:
        return chr(0x2400 + code)
    if code == 0x7F:
        return "\u2421"
    if code < 0xA0:
        return f"\\x{code:02x}"
    if 0xDC80 <= code <= 0xDCFF:
        return f"\\x{code - 0xDC00:02x}"  # how Python reads a byte of a file name that is not UTF-8
    return f"⟨U+{code:04X}⟩"


def _escape(match: re.Match[str]) -> str:
    units = match[0].encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))
