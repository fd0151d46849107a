"""Text files for editing: everything outside an edit stays byte for byte, including line endings and invalid bytes.

Content is replaced atomically, keeping the file's mode, owner, extended attributes and links to it.
"""

from __future__ import annotations

import codecs
import contextlib
import errno
import os
import secrets
import stat
from bisect import bisect_left
from functools import cached_property
from pathlib import Path

import msgspec

from kedge.files.safe_open import open_directory, open_file
from kedge.files.states import compute_digest
from kedge.tools.errors import ToolError
from kedge.tools.text.encodings import has_utf8

# A larger source file is generated, and a model cannot read all of it.
MAX_EDIT_BYTES = 10 * 1024 * 1024

_BOMS = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))

_NO_HARD_LINKS = frozenset({errno.EPERM, errno.EACCES, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS})


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


def read_text_file(path: Path, shown: str) -> TextFile:
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


def replace_file(path: Path, data: bytes, before: os.stat_result | None, shown: str) -> None:
    """Write `data` to a resolved path. `before` is the stat result of the file when it was read; None for a new file.

    Works relative to one opened directory, so that a link that replaces a part of the path is not followed.
    """
    try:
        with open_directory(path.parent, create=before is None) as at:
            if before is None or _can_replace(at, before):
                _write_beside(path.name, at, data, before, shown)
            else:
                _write_in_place(path.name, at, data, before, shown)
    except OSError as error:
        raise ToolError(f"{shown} cannot be written: {error.strerror}. Nothing was changed.") from error


def publish_file(temporary: str, name: str, at: int) -> None:
    """Give a temporary file of the directory `at` its final name. Raises `FileExistsError` if the name is taken.

    Uses a hard link, because a rename would overwrite.
    """
    try:
        os.link(temporary, name, src_dir_fd=at, dst_dir_fd=at, follow_symlinks=False)
    except OSError as error:
        if error.errno not in _NO_HARD_LINKS:
            raise
        os.replace(temporary, name, src_dir_fd=at, dst_dir_fd=at)


def _can_replace(at: int, before: os.stat_result) -> bool:
    """Return whether we own the file and may write its directory; otherwise it is overwritten in place."""
    is_owner = before.st_uid == os.geteuid() or os.geteuid() == 0
    return is_owner and os.access(".", os.W_OK | os.X_OK, dir_fd=at)


def _write_beside(name: str, at: int, data: bytes, before: os.stat_result | None, shown: str) -> None:
    temporary = f".{name[:100]}.{secrets.token_hex(6)}.kedge"
    # A new file gets the user's umask. A replacement stays private until it has the mode of the old file.
    mode = 0o666 if before is None else 0o600
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, mode, dir_fd=at)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(data)
            if before is not None:
                _copy_metadata(file.fileno(), name, at, before)
            file.flush()
            os.fsync(file.fileno())
        if before is None:
            try:
                publish_file(temporary, name, at)
            except FileExistsError:
                raise ToolError(
                    f"{shown} was created by somebody else in the meantime.", "View it before you change it."
                ) from None
        else:
            _check_unchanged(name, at, before, shown)
            os.replace(temporary, name, src_dir_fd=at, dst_dir_fd=at)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary, dir_fd=at)


def _write_in_place(name: str, at: int, data: bytes, before: os.stat_result, shown: str) -> None:
    _check_unchanged(name, at, before, shown)
    fd = os.open(name, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=at)
    try:
        with os.fdopen(fd, "wb") as file:
            _check_same(os.fstat(fd), before, shown)
            file.write(data)
            file.truncate()
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise ToolError(
            f"{shown} was written only partly: {error.strerror}.", "Write it again when there is space."
        ) from error


def _copy_metadata(fd: int, name: str, at: int, before: os.stat_result) -> None:
    """Copy owner, mode and extended attributes. The owner first: changing it clears some bits of the mode."""
    if (before.st_uid, before.st_gid) != (os.geteuid(), os.getegid()):
        with contextlib.suppress(PermissionError):  # we are not in that group
            os.fchown(fd, before.st_uid, before.st_gid)
    os.fchmod(fd, stat.S_IMODE(before.st_mode))
    if hasattr(os, "listxattr"):
        _copy_attributes(fd, name, at)


def _copy_attributes(fd: int, name: str, at: int) -> None:
    """Copy extended attributes, like access lists. Attributes of the kernel cannot be copied."""
    with contextlib.suppress(OSError):
        old = os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=at)
        try:
            for attribute in os.listxattr(old):
                with contextlib.suppress(OSError):
                    os.setxattr(fd, attribute, os.getxattr(old, attribute))
        finally:
            os.close(old)


def _check_unchanged(name: str, at: int, before: os.stat_result, shown: str) -> None:
    try:
        now = os.stat(name, dir_fd=at, follow_symlinks=False)
    except FileNotFoundError:
        raise ToolError(f"{shown} was deleted in the meantime. Nothing was written.") from None
    _check_same(now, before, shown)


def _check_same(now: os.stat_result, before: os.stat_result, shown: str) -> None:
    same = ("st_ino", "st_dev", "st_size", "st_mtime_ns")
    if any(getattr(now, name) != getattr(before, name) for name in same):
        raise ToolError(
            f"{shown} was changed by somebody else in the meantime.", "View it again, then repeat the edit."
        )
