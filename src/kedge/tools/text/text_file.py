"""Text files as they are: what is not edited stays byte for byte, line endings, encoding and odd bytes included."""

from __future__ import annotations

import codecs
import hashlib
import os
import stat
from bisect import bisect_left
from functools import cached_property
from pathlib import Path

import msgspec

from kedge.files.safe_open import open_file
from kedge.tools.errors import ToolError
from kedge.tools.text.encodings import has_utf8

# A source file of this size is generated; what the model cannot read whole it cannot edit safely either.
MAX_EDIT_BYTES = 10 * 1024 * 1024

_BOMS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)


class BinaryFile(Exception):
    """These bytes are no text."""


class Encoding(msgspec.Struct, frozen=True):
    """How text is stored. Bytes that are not valid in it are kept as half surrogates."""

    name: str
    bom: bytes = b""
    errors: str = "strict"

    def encode(self, text: str) -> bytes:
        return self.bom + text.encode(self.name, self.errors)


def decode(data: bytes) -> tuple[str, Encoding]:
    """The text of a file, and how to store it again. Raises `BinaryFile`."""
    for bom, name in _BOMS:
        if data.startswith(bom):
            try:
                return data[len(bom) :].decode(name), Encoding(name, bom)
            except UnicodeDecodeError:
                break
    if b"\0" in data:
        raise BinaryFile
    try:
        return data.decode(), Encoding("utf-8")
    except UnicodeDecodeError:
        pass
    if has_utf8(data):  # with something broken in it
        return data.decode("utf-8", "surrogateescape"), Encoding("utf-8", errors="surrogateescape")
    return data.decode("latin-1"), Encoding("latin-1")


def compute_digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


class TextFile(msgspec.Struct, frozen=True, dict=True):
    """A file that was read: `raw` is its text with the line endings that it has."""

    path: Path
    data: bytes
    raw: str
    encoding: Encoding
    status: os.stat_result

    @property
    def digest(self) -> str:
        return compute_digest(self.data)

    @cached_property
    def text(self) -> str:
        """As the model sees it: every line ends with a line feed."""
        return self.raw.replace("\r\n", "\n")

    @cached_property
    def newline(self) -> str:
        """What most of its lines end with."""
        return "\r\n" if self.raw.count("\r\n") * 2 > self.raw.count("\n") else "\n"

    @cached_property
    def _returns(self) -> list[int]:
        """Where in `text` a carriage return was left out: before each of these line feeds."""
        places: list[int] = []
        at = self.raw.find("\r\n")
        while at >= 0:
            places.append(at - len(places))
            at = self.raw.find("\r\n", at + 2)
        return places

    def replaced(self, spans: list[tuple[int, int, str]]) -> str:
        """`raw` with these spans of `text` (start, end, new text; in order) replaced, and nothing else touched."""
        pieces: list[str] = []
        at = 0
        for start, end, new in spans:
            first, last = self._in_raw(start), self._in_raw(end)
            pieces += [self.raw[at:first], self._with_line_ends(new, self.raw[first:last])]
            at = last
        return "".join([*pieces, self.raw[at:]])

    def encoded(self, raw: str) -> bytes:
        try:
            return self.encoding.encode(raw)
        except UnicodeEncodeError as error:
            odd = error.object[error.start : error.start + 1]
            raise ToolError(
                f"{self.path} is stored as {self.encoding.name}, which has no {odd!r}. Write it another way, or"
                " convert the file to UTF-8 first."
            ) from error

    def _in_raw(self, place: int) -> int:
        return place + bisect_left(self._returns, place)

    def _with_line_ends(self, new: str, old: str) -> str:
        """Like the lines that are replaced; where these are of no help, like the rest of the file."""
        plain = new.replace("\r\n", "\n")
        has_returns = "\r\n" in old if "\n" in old else self.newline == "\r\n"
        return plain.replace("\n", "\r\n") if has_returns else plain


def read(path: Path, shown: str) -> TextFile:
    """The file at a resolved path; `shown` is how the model calls it. Blocks: not for the loop."""
    try:
        # Neither a pipe nor a device may keep us waiting.
        fd = open_file(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
    except FileNotFoundError:
        raise ToolError(f"{shown} does not exist. Use write to create it.") from None
    except OSError as error:
        raise ToolError(f"{shown} cannot be read ({error.strerror}); check the path and its permissions.") from error
    try:
        status = os.fstat(fd)
        _check_kind(status, shown)
        with os.fdopen(fd, "rb", closefd=False) as file:
            data = file.read(MAX_EDIT_BYTES + 1)
    finally:
        os.close(fd)
    try:
        raw, encoding = decode(data)
    except BinaryFile:
        raise ToolError(
            f"{shown} is a binary file and cannot be edited as text. Use bash with a program made for it."
        ) from None
    return TextFile(path, data, raw, encoding, status)


def _check_kind(status: os.stat_result, shown: str) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise ToolError(f"{shown} is a directory. Give the path of a file; ls shows what is in there.")
    if not stat.S_ISREG(status.st_mode):
        raise ToolError(f"{shown} is a pipe, a socket or a device, and cannot be edited. Give the path of a file.")
    if status.st_size > MAX_EDIT_BYTES:
        raise ToolError(
            f"{shown} has {status.st_size >> 20} MiB; files over {MAX_EDIT_BYTES >> 20} MiB are not edited. Use a"
            " command (sed, a script) instead."
        )
