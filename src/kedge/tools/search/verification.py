"""Results of ripgrep, checked against the files.

ripgrep opens files by name. A link that replaces a file or a directory at the right moment leads it outside the
directory to search. So each result is read again through directories opened without following links, and dropped if it
differs.
"""

from __future__ import annotations

import codecs
import io
import os
import stat
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple

from kedge.files.safe_open import open_directory

MAX_LINE_BYTES = 2_000  # of a longer line, ripgrep prints at least this much and a note
_MAX_READ_BYTES = 8 * 1024 * 1024  # a larger file is read line by line
_PIECE = 64 * 1024
_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


class Line(NamedTuple):
    number: int  # 0: ripgrep's note about a binary file
    raw: bytes
    is_match: bool


def verify_names(base: Path, found: Sequence[str]) -> list[str]:
    """Return the paths relative to `base` that exist, in order. Blocks."""
    there: dict[str, set[str]] = {}
    for directory, wanted in _group_by_directory(found).items():
        try:
            with open_directory(base / directory) as at:
                there[directory] = wanted & _entries(at)
        except OSError:
            there[directory] = set()
    return [path for path in found if (at := path.rpartition("/"))[2] in there[at[0]]]


def verify_lines(base: Path, found: Mapping[str, list[Line]]) -> dict[str, list[Line]]:
    """Return the files that contain the lines that ripgrep printed, in order. Blocks."""
    confirmed: set[str] = set()
    for directory, wanted in _group_by_directory(found).items():
        prefix = f"{directory}/" if directory else ""
        try:
            with open_directory(base / directory) as at:
                confirmed |= {prefix + name for name in wanted if _has_lines(name, at, found[prefix + name])}
        except OSError:
            continue
    return {name: lines for name, lines in found.items() if name in confirmed}


def _group_by_directory(paths: Iterable[str]) -> dict[str, set[str]]:
    found: defaultdict[str, set[str]] = defaultdict(set)
    for path in paths:
        directory, _, name = path.rpartition("/")
        found[directory].add(name)
    return found


def _entries(at: int) -> set[str]:
    fd = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=at)  # `at` may be O_PATH
    try:
        return set(os.listdir(fd))  # noqa: PTH208 - of a descriptor
    finally:
        os.close(fd)


def _has_lines(name: str, at: int, lines: Sequence[Line]) -> bool:
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with os.fdopen(os.open(name, flags, dir_fd=at), "rb") as file:
            status = os.fstat(file.fileno())
            return stat.S_ISREG(status.st_mode) and _contains(file, status.st_size, lines)
    except OSError:
        return False


def _contains(file: BinaryIO, size: int, lines: Sequence[Line]) -> bool:
    head = file.read(3)
    file.seek(3 if head == codecs.BOM_UTF8 else 0)
    if size <= _MAX_READ_BYTES and not head.startswith(_UTF16):
        own = file.read().split(b"\n")
        return all(
            line.number <= len(own) and _is_same(line.raw, own[line.number - 1]) for line in lines if line.number
        )
    wanted = {line.number: line.raw for line in lines if line.number}
    last = max(wanted, default=0)
    for number, own in _read_lines(file, is_utf16=head.startswith(_UTF16)):
        if number > last:
            break
        if number in wanted and not _is_same(wanted.pop(number), own):
            return False
    return not wanted


def _is_same(printed: bytes, own: bytes) -> bool:
    return printed == own or (len(printed) >= MAX_LINE_BYTES and printed[:MAX_LINE_BYTES] == own[:MAX_LINE_BYTES])


def _read_lines(file: BinaryIO, *, is_utf16: bool) -> Iterator[tuple[int, bytes]]:
    """Yield numbered lines without line feeds, in UTF-8 like ripgrep's output; only the beginning of long lines."""
    number, is_start = 1, True
    for piece in _read_utf16(file) if is_utf16 else iter(lambda: file.readline(_PIECE), b""):
        if is_start:
            yield number, piece.removesuffix(b"\n")
        is_start = piece.endswith(b"\n")
        number += is_start


def _read_utf16(file: BinaryIO) -> Iterator[bytes]:
    text = io.TextIOWrapper(file, "utf-16", errors="replace", newline="\n")
    try:
        while piece := text.readline(_PIECE):
            yield piece.encode("utf-8", "replace")
    finally:
        text.detach()  # the caller closes the file
