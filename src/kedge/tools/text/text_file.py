"""Text files for editing: everything outside an edit stays byte for byte, including line endings and invalid bytes."""

from __future__ import annotations

import codecs
import os
import stat
from bisect import bisect_left
from functools import cached_property
from pathlib import Path

import msgspec

from kedge.files.safe_open import open_file
from kedge.files.states import compute_digest
from kedge.tools.errors import ToolError
from kedge.tools.text.encodings import has_utf8

# A larger source file is generated, and a model cannot read all of it.
MAX_EDIT_BYTES = 10 * 1024 * 1024

_BOMS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)


class BinaryFile(Exception):
    """The bytes are not text."""


class Encoding(msgspec.Struct, frozen=True):
    """How text is stored. Invalid bytes are kept as surrogate escapes."""

    name: str
    bom: bytes = b""
    errors: str = "strict"

    def encode(self, text: str) -> bytes:
        return self.bom + text.encode(self.name, self.errors)


def decode_text(data: bytes) -> tuple[str, Encoding]:
    """Return the text of a file and its encoding. Raises `BinaryFile`."""
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
    if has_utf8(data):  # with invalid bytes
        return data.decode("utf-8", "surrogateescape"), Encoding("utf-8", errors="surrogateescape")
    return data.decode("latin-1"), Encoding("latin-1")


class TextFile(msgspec.Struct, frozen=True, dict=True):
    """The content of a file. `raw` has the original line endings."""

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
        """The text as the model sees it, with line feeds only."""
        return self.raw.replace("\r\n", "\n")

    @cached_property
    def newline(self) -> str:
        """The line ending of most lines."""
        return "\r\n" if self.raw.count("\r\n") * 2 > self.raw.count("\n") else "\n"

    @cached_property
    def _returns(self) -> list[int]:
        """Positions in `text` of the line feeds that follow a carriage return in `raw`."""
        positions: list[int] = []
        at = self.raw.find("\r\n")
        while at >= 0:
            positions.append(at - len(positions))
            at = self.raw.find("\r\n", at + 2)
        return positions

    def replace_spans(self, spans: list[tuple[int, int, str]]) -> str:
        """Return `raw` with these spans of `text` (start, end, new text; in order) replaced."""
        pieces: list[str] = []
        at = 0
        for start, end, new in spans:
            first, last = self._in_raw(start), self._in_raw(end)
            pieces += [self.raw[at:first], self._with_line_ends(new, self.raw[first:last])]
            at = last
        return "".join([*pieces, self.raw[at:]])

    def encode_text(self, raw: str) -> bytes:
        try:
            return self.encoding.encode(raw)
        except UnicodeEncodeError as error:
            odd = error.object[error.start : error.start + 1]
            raise ToolError(
                f"{self.path} is stored as {self.encoding.name}, which cannot encode {odd!r}.",
                "Write it differently, or convert the file to UTF-8 first.",
            ) from error

    def _in_raw(self, position: int) -> int:
        return position + bisect_left(self._returns, position)

    def _with_line_ends(self, new: str, old: str) -> str:
        """Use the line endings of the replaced lines; if there are none, those of the file."""
        plain = new.replace("\r\n", "\n")
        has_returns = "\r\n" in old if "\n" in old else self.newline == "\r\n"
        return plain.replace("\n", "\r\n") if has_returns else plain


def read(path: Path, shown: str) -> TextFile:
    """Read the file at a resolved path; `shown` is its name in errors. Blocks. Raises ToolError."""
    try:
        # O_NONBLOCK: opening a pipe or a device must not wait.
        fd = open_file(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
    except FileNotFoundError:
        raise ToolError(f"{shown} does not exist.", "Use write to create it.") from None
    except OSError as error:
        raise ToolError(f"{shown} cannot be read ({error.strerror});", "check the path and its permissions.") from error
    try:
        status = os.fstat(fd)
        _check_kind(status, shown)
        with os.fdopen(fd, "rb", closefd=False) as file:
            data = file.read(MAX_EDIT_BYTES + 1)
    finally:
        os.close(fd)
    try:
        raw, encoding = decode_text(data)
    except BinaryFile:
        raise ToolError(
            f"{shown} is a binary file and cannot be edited as text.", "Use bash with a program made for it."
        ) from None
    return TextFile(path, data, raw, encoding, status)


def _check_kind(status: os.stat_result, shown: str) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise ToolError(f"{shown} is a directory.", "Give the path of a file; ls shows its content.")
    if not stat.S_ISREG(status.st_mode):
        raise ToolError(f"{shown} is a pipe, a socket or a device, and cannot be edited.", "Give the path of a file.")
    if status.st_size > MAX_EDIT_BYTES:
        raise ToolError(
            f"{shown} has {status.st_size >> 20} MiB; files over {MAX_EDIT_BYTES >> 20} MiB are not edited.",
            "Use a command (sed, a script) instead.",
        )
