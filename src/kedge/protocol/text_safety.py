"""Make text from models, files, programs and servers safe to show: it can neither drive a terminal nor hide a part.

All policies share one set of marks: `␛` for a control character, `\\x9b` for a C1 control or a byte that is not UTF-8,
`⟨U+202E⟩` for a character that changes the direction or is invisible. Spaces of any width, and joiners inside words and
emoji, stay.

    visible, visible_line  text that a person decides about or that the interface shows: nothing is removed
    one_line               the start of such a text, for a column or a status line
    program_output         output of a program: colors and overwritten lines are removed, the rest as above
    for_terminal           text that a command prints on a terminal; a pipe or a file gets the original
    json_for_terminal      the same for JSON, which stays valid and keeps its meaning
    inside_escape          a title or a notification, sent inside an escape sequence
    pasted_text            text pasted into the editor: escape sequences and control characters are removed

Also: short lines, provisional titles and amounts of money. Standard library only: every `kedge run` imports this.
"""

from __future__ import annotations

import re

TAB = 4
OUTPUT_TAB = 8  # as terminals have it
MOST_BLANK_LINES = 3  # in a row; for more, their number is shown
MOST_SPACES = 80

_DIRECTIONS = "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"
_UNSEEN = (
    "\u00ad\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b\u2028\u2029\u2060-\u2065\u206a-\u206f\u3164\ufeff\uffa0"
    "\ufff0-\ufffb\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e00ff\U000e01f0-\U000e0fff"
)
_JOINERS = "\u200c\u200d"  # some scripts and emoji need them
_SELECTORS = "\ufe00-\ufe0f\U000e0100-\U000e01ef"  # select the look of the character before them
# After these characters a joiner or a selector has no use: Latin, Greek, Cyrillic and non-letters; ASCII.
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
    r"|\x1b[\]PX^_][^\x07\x1b\n]*(?:\x07|\x1b\\)?"  # OSC, DCS and similar strings
    r"|\x1b[ -/]*[0-~]"
)
_OVERWRITTEN = r"[^\n]*\r(?=[^\n])"  # by a progress bar
_BLANK_LINES = rf"(?m)^(?:[^\S\n]*\n){{{MOST_BLANK_LINES + 1},}}"
_SPACES = rf"[^\S\n]{{{MOST_SPACES + 1},}}"
_LINE_BREAKS = r"\r\n?|[\x0b\x0c\x85\u2028\u2029]"


def visible(text: str) -> str:
    """Replace every control and invisible character by a mark; keep line ends, and expand tabs."""
    if _is_plain(text):
        return text
    return _mark(text.expandtabs(TAB) if "\t" in text else text)


def visible_line(text: str) -> str:
    """As `visible`, on one line: spaces replace line ends."""
    return visible(text.replace("\r\n", "\n")).replace("\n", " ")


def one_line(text: str, length: int = 120) -> str:
    """As `visible_line`, with single spaces, cut to `length` characters."""
    return shorten(visible_line(text), length)


def without_blank_runs(text: str) -> str:
    """Replace long runs of blank lines or spaces by a mark with their number, so that they hide nothing."""
    text = re.sub(_BLANK_LINES, lambda match: blank_lines_mark(match[0].count("\n")) + "\n", text)
    return re.sub(_SPACES, lambda match: f"⋯ {len(match[0])} spaces ⋯", text)


def blank_lines_mark(number: int) -> str:
    return f"⋯ {number} blank lines"


def program_output(text: str) -> str:
    """The text that a terminal would show in the end, without colors; marks replace other control characters."""
    if _is_plain(text):
        return text
    text = text.replace("\r\n", "\n")
    if "\x1b" in text or "\x9b" in text:
        text = re.sub(_ESCAPES, "", text)
    if "\r" in text:
        text = re.sub(_OVERWRITTEN, "", text).replace("\r", "")
    return _mark(text.expandtabs(OUTPUT_TAB))


def for_terminal(text: str) -> str:
    """As `visible`, but tabs stay."""
    return text if _is_plain(text) else _mark(text.replace("\r\n", "\n"))


def json_for_terminal(text: str) -> str:
    """Replace each character that would be marked by `\\uXXXX`."""
    return text if _is_plain(text) else re.sub(_UNSAFE, _escape, text)


def inside_escape(text: str) -> str:
    """One line without a character that could end the sequence; spaces replace those."""
    return "".join(char if char.isprintable() else " " for char in text).strip()


def pasted_text(text: str) -> str:
    """Remove escape sequences and control characters, make all line breaks the same, and replace lone surrogates."""
    text = re.sub(_LINE_BREAKS, "\n", text)
    text = re.sub(rf"{_ESCAPES}|[\x00-\x08\x0b-\x1f\x7f-\x9f]", "", text)
    return text.encode("utf-8", "replace").decode()


def has_control(text: str) -> bool:
    """Whether the text contains DEL or a C0 or C1 control other than tab and newline."""
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
        return f"\\x{code - 0xDC00:02x}"  # Python's form of a byte of a file name that is not UTF-8
    return f"⟨U+{code:04X}⟩"


def _escape(match: re.Match[str]) -> str:
    units = match[0].encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))


PROVISIONAL_CHARS = 60  # fits a column of a list


def shorten(text: str, max_chars: int) -> str:
    """Return a text on one line, cut to `max_chars` with an ellipsis."""
    line = " ".join(text.split())
    return line if len(line) <= max_chars else f"{line[: max_chars - 1]}…"


PROGRAMS = frozenset({"bash", "bubblewrap", "bwrap", "git", "kedge", "pip", "rg", "ripgrep", "tmux", "uv"})


def as_sentence(text: str) -> str:
    """Return a text for people with a capital letter if it starts with an ordinary word."""
    first, _, _ = text.partition(" ")
    is_word = first.isascii() and first.isalpha() and first.islower() and first not in PROGRAMS
    return text[0].upper() + text[1:] if is_word else text


def provisional_title(prompt: str) -> str:
    """The start of the first prompt, on one line: a session's title until it gets another."""
    return shorten(prompt, PROVISIONAL_CHARS)


def dollars(amount: float) -> str:
    """An amount to a hundredth of a cent; smaller ones with two significant digits."""
    if amount >= 0.01 or amount <= 0:
        return f"${amount:.4f}".rstrip("0").rstrip(".") if amount != int(amount) else f"${amount:.0f}"
    text = f"{amount:.12f}"
    digits = text.removeprefix("0.")
    decimals = len(digits) - len(digits.lstrip("0")) + 2
    return f"${amount:.{min(decimals, len(digits))}f}".rstrip("0").rstrip(".")


def describe_period(seconds: float) -> str:
    """Return a period for people, in at most two units: "45 s", "15 min", "3 h 50 min", "2 days 4 h"."""
    whole = round(seconds)
    for size, unit, smaller_size, smaller in ((86_400, "days", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= 2 * size or (whole >= size and unit != "days"):
            rest = whole % size // smaller_size
            return f"{whole // size} {unit}" + (f" {rest} {smaller}" if rest else "")
    return f"{whole} s"
