"""Output of commands: cleaned for a model, shortened in the middle, and saved in full to a file.

Memory holds only the beginning and the end. A cut is between two lines, or inside a line that is too long; never inside
a character. Its counts are exact.
"""

from __future__ import annotations

import codecs
import contextlib
import os
import re
import secrets
import shlex
import unicodedata
from collections import deque
from pathlib import Path
from typing import BinaryIO, NamedTuple

MAX_SHOWN_CHARS = 16_000
MAX_UNFINISHED_CHARS = 2_000  # of a line without an end, which is shown again when it has more text
MAX_BYTES = 256 * 1024 * 1024  # of one command
MAX_DIRECTORY_BYTES = 1024 * 1024 * 1024  # of one session; the oldest files are deleted first
_BUFFERED_CHARS = MAX_SHOWN_CHARS  # shorter output needs no file: the model sees all of it

# The name of a file with a whole output, in the sentence of a result that says so.
SAVED_OUTPUT = re.compile(r"(?:is|are) in (/[^\n]{0,1000}?/output-[0-9a-f]{8}\.txt): use view")

# Escape sequences of terminals: CSI, OSC and other strings, two-character ones. Compiled at the first use.
_ESCAPE = (
    r"\x1b\[[0-?]*[ -/]*[@-~]"
    r"|\x1b[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)"
    r"|\x1b[ -/]+[0-~]"
    r"|\x1b[0-OQ-WYZ\\`-~]"
)
_UNFINISHED = r"\x1b(?:\[[0-?]*[ -/]*|[\]PX^_][^\x07\x1b]*\x1b?|[ -/]*)?\Z"
_MAX_ESCAPE = 4096
# Control characters to remove. Escape and bell are kept, to recognize escape sequences.
_CONTROLS = bytes(set(range(32)) - set(b"\t\n\r\x1b\x07")) + b"\x7f"
_JOINER = "\u200d"
_MAX_CLUSTER = 32  # code points checked around a cut


class Cleaner:
    """Converts bytes of a terminal program to text: no escape sequences, the last state of overwritten lines."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._pending = ""  # the beginning of an escape sequence, or a carriage return whose newline may follow
        self._is_mid_line = False

    def feed(self, data: bytes, *, is_last: bool = False) -> str:
        text = self._pending + self._decoder.decode(data.translate(None, _CONTROLS), is_last)
        self._pending = ""
        if not is_last:
            text = self._hold_back(text)
        if "\x1b" in text:
            text = re.sub(_ESCAPE, "", text).replace("\x1b", "")
        text = text.replace("\x07", "").replace("\r\n", "\n")
        if "\r" in text:
            text = self._resolve_returns(text)
        if text:
            self._is_mid_line = not text.endswith("\n")
        return text

    def _hold_back(self, text: str) -> str:
        """Store an incomplete end of the text for the next call."""
        at = len(text) - text.endswith("\r")
        if "\x1b" in text and (found := re.compile(_UNFINISHED).search(text, max(0, len(text) - _MAX_ESCAPE))):
            at = found.start()
        self._pending = text[at:]
        return text[:at]

    def _resolve_returns(self, text: str) -> str:
        """Keep only the last state of lines that a progress bar overwrites."""
        lines = text.split("\n")
        for index, line in enumerate(lines):
            if "\r" in line:
                states = [state for state in line.split("\r") if state]
                newline = "\n" if index == 0 and self._is_mid_line and states else ""  # the part shown before stays
                lines[index] = newline + (states[-1] if states else "")
        return "\n".join(lines)


class Parts(NamedTuple):
    """The text before and after a cut, and whether they end and begin with whole lines."""

    head: str
    tail: str
    has_whole_head: bool
    has_whole_tail: bool


class Excerpt:
    """Keeps the beginning and the end of a text that arrives in pieces, together at most `limit` characters."""

    def __init__(self, limit: int = MAX_SHOWN_CHARS, *, lines_before: int = 0) -> None:
        self._half = limit // 2
        self._lines_before = lines_before
        self._head = ""
        self._tail: deque[str] = deque()
        self._tail_chars = 0
        self.chars = 0
        self.newlines = 0

    def add(self, text: str) -> None:
        self.chars += len(text)
        self.newlines += text.count("\n")
        # One more character than is shown on each side, to see what the cut would split.
        room = self._half + 1 - len(self._head)
        if room > 0:
            self._head += text[:room]
            text = text[room:]
        if text:
            self._tail.append(text)
            self._tail_chars += len(text)
            while self._tail_chars - len(self._tail[0]) > self._half:
                self._tail_chars -= len(self._tail.popleft())

    @property
    def unfinished_line(self) -> str:
        """The beginning of a line that has not ended yet; empty if it is too long to be shown again."""
        text = "".join([self._head, *self._tail])[-MAX_UNFINISHED_CHARS - 1 :]
        line = text[text.rfind("\n") + 1 :]
        return line if len(line) <= MAX_UNFINISHED_CHARS else ""

    def parts(self) -> Parts | None:
        """Return the text before and after the cut; None if nothing was cut.

        Whole lines are shown if they fill at least half of the space.
        """
        if self.chars <= 2 * self._half:
            return None
        tail = "".join(self._tail)
        start = len(tail) - self._half - 1
        tail = self._head[-1:] + tail if start < 0 else tail[start:]
        head_end = self._head.rfind("\n", 0, self._half) + 1
        tail_start = tail.find("\n") + 1
        has_whole_head = head_end >= max(self._half // 2, 1)
        has_whole_tail = 0 < tail_start <= self._half // 2 + 1
        return Parts(
            self._head[:head_end] if has_whole_head else _before(self._head, self._half),
            tail[tail_start:] if has_whole_tail else _behind(tail, 1),
            has_whole_head,
            has_whole_tail,
        )

    def text(self, saved: OutputFile | None = None) -> str:
        """Return the text with a note at the cut, which says where the whole text is `saved`."""
        parts = self.parts()
        if parts is None:
            return self._head + "".join(self._tail)
        head, tail, has_whole_head, has_whole_tail = parts
        first = self._lines_before + head.count("\n") + 1
        is_line_end = has_whole_tail or (not tail and (self._tail[-1] if self._tail else self._head).endswith("\n"))
        last = self._lines_before + self.newlines - tail.count("\n") + (not is_line_end)
        cut = self.chars - len(head) - len(tail)
        note = f"{cut:,} characters were cut out here, from line {first:,} to line {last:,}."
        if saved is not None:
            note += f" {saved.where}"
            if not has_whole_head:
                note += saved.explain_long_line(first, len(head) - head.rfind("\n") - 1)
            elif not has_whole_tail:
                note += saved.explain_long_line(last, 0)
        end = "" if has_whole_head else "\n"
        return f"{head}{end}\n[… {note} …]\n\n{tail}"


def cut_at_lines(text: str, head_chars: int, tail_chars: int) -> tuple[str, str]:
    """Return the beginning and the end of a text, in whole lines, if these are not very long."""
    head, tail = _before(text, head_chars), _behind(text, len(text) - tail_chars)
    head_end = head.rfind("\n") + 1
    tail_start = tail.find("\n") + 1
    return (
        head[:head_end] if head_end >= len(head) // 2 else head,
        tail[tail_start:] if tail_start <= len(tail) // 2 else tail,
    )


def _before(text: str, end: int) -> str:
    """`text[:end]`, or less, so that it ends between two characters."""
    least = max(end - _MAX_CLUSTER, 0)
    at = end
    while at > least and _is_inside(text, at):
        at -= 1
    return text[:at]


def _behind(text: str, start: int) -> str:
    """`text[start:]`, or less, so that it begins between two characters."""
    at = start
    while at < min(len(text), start + _MAX_CLUSTER) and _is_inside(text, at):
        at += 1
    return text[at:]


def _is_inside(text: str, at: int) -> bool:
    """Whether a cut before `text[at]` would go through what a person sees as one character, or through a CRLF."""
    if not 0 < at < len(text):
        return False
    before, after = text[at - 1], text[at]
    return (
        (before == "\r" and after == "\n")
        or _JOINER in (before, after)
        or unicodedata.category(after) in ("Mn", "Me", "Mc")
        or "\U0001f3fb" <= after <= "\U0001f3ff"  # a skin tone
    )


class OutputFile:
    """A file with the whole output, created when the output gets long. If the disk fails, only the file is lost."""

    def __init__(self, directory: Path, name: str = "") -> None:
        self.path = directory / f"output-{name or secrets.token_hex(4)}.txt"
        self._buffer: list[str] | None = []
        self._chars = 0
        self._bytes = 0
        self._file: BinaryIO | None = None
        self._is_whole = True

    @property
    def size_bytes(self) -> int:
        """How much was written to the file."""
        return self._bytes

    @property
    def where(self) -> str:
        """Where the whole output is, as a sentence for the model."""
        if self._is_whole:
            return f"All of it is in {self.path}: use view with an offset, or grep."
        if not self._bytes:
            return "The rest could not be saved."
        return f"Its first {self._bytes:,} bytes are in {self.path}: use view with an offset, or grep."

    def explain_long_line(self, line: int, shown_chars: int) -> str:
        """Say how to read a line that is too long for view, from the first part that was not shown."""
        if not self._is_whole and not self._bytes:
            return ""
        part = f"{shown_chars + 1}-{shown_chars + MAX_SHOWN_CHARS // 2}"
        skip = f"tail -n +{line} {shlex.quote(str(self.path))} | head -n 1"
        return f" Line {line:,} is too long for view: `{skip} | cut -c {part}` shows a part of it."

    def write(self, text: str) -> None:
        if self._buffer is None:
            self._append(text)
            return
        self._buffer.append(text)
        self._chars += len(text)
        if self._chars > _BUFFERED_CHARS:
            self.spill()

    def spill(self) -> None:
        """Create the file and write the buffered output to it."""
        if self._buffer is None:
            return
        text, self._buffer = "".join(self._buffer), None
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            _make_room(self.path.parent)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            self._file = os.fdopen(os.open(self.path, flags, 0o600), "wb", buffering=0)
        except OSError:
            self._is_whole = False
        self._append(text)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def _append(self, text: str) -> None:
        data = text.encode("utf-8", "replace")
        if self._file is None or not self._is_whole:
            return
        if self._bytes + len(data) > MAX_BYTES:
            self._is_whole = False
            return
        try:
            self._file.write(data)
            self._bytes += len(data)
        except OSError:
            self._is_whole = False


def _make_room(directory: Path) -> None:
    """Delete the oldest files over the limit. Other calls of the session may do the same at the same time."""
    files: list[tuple[float, int, Path]] = []
    for path in directory.glob("output-*.txt"):
        with contextlib.suppress(FileNotFoundError):
            status = path.stat()
            files.append((status.st_mtime, status.st_size, path))
    size = sum(file_size for _, file_size, _ in files)
    for _, file_size, path in sorted(files):
        if size <= MAX_DIRECTORY_BYTES:
            return
        path.unlink(missing_ok=True)
        size -= file_size
