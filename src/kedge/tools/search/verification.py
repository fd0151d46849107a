"""Results of ripgrep, confirmed against the files themselves.

ripgrep opens what it finds by name: a link that is put in the place of a file or a directory at the right moment leads
it out of where it should search. So what it says is looked up again in directories that are opened without following a
link, and what is not there is dropped: another process's file, or one that changed meanwhile.
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

MAX_LINE_BYTES = 2_000  # of a longer line ripgrep says at least as much, and a note
_WHOLE_BYTES = 8 * 1024 * 1024  # a larger file is read line by line
_PIECE = 64 * 1024
_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


class Line(NamedTuple):
    number: int  # 0: what ripgrep says of a binary file
    raw: bytes
    is_match: bool


def names(base: Path, found: Sequence[str]) -> list[str]:
    """Those of the paths from `base` that are there, in their order. Blocks: not for the loop."""
    there: dict[str, set[str]] = {}
    for directory, wanted in _by_directory(found).items():
        try:
            with open_directory(base / directory) as at:
                there[directory] = wanted & _entries(at)
        except OSError:
            there[directory] = set()
    return [path for path in found if (at := path.rpartition("/"))[2] in there[at[0]]]


def lines(base: Path, found: Mapping[str, list[Line]]) -> dict[str, list[Line]]:
    """The files whose lines are as ripgrep says, in their order. Blocks: not for the loop."""
    confirmed: set[str] = set()
    for directory, wanted in _by_directory(found).items():
        prefix = f"{directory}/" if directory else ""
        try:
            with open_directory(base / directory) as at:
                confirmed |= {prefix + name for name in wanted if _has_lines(name, at, found[prefix + name])}
        except OSError:
            continue
    return {name: said for name, said in found.items() if name in confirmed}


def _by_directory(paths: Iterable[str]) -> dict[str, set[str]]:
    found: defaultdict[str, set[str]] = defaultdict(set)
    for path in paths:
        directory, _, name = path.rpartition("/")
        found[directory].add(name)
    return found


def _entries(at: int) -> set[str]:
    fd = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=at)  # the other one cannot be read from
    try:
        return set(os.listdir(fd))  # noqa: PTH208 - of a descriptor
    finally:
        os.close(fd)


def _has_lines(name: str, at: int, said: Sequence[Line]) -> bool:
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with os.fdopen(os.open(name, flags, dir_fd=at), "rb") as file:
            status = os.fstat(file.fileno())
            return stat.S_ISREG(status.st_mode) and _agrees(file, status.st_size, said)
    except OSError:
        return False


def _agrees(file: BinaryIO, size: int, said: Sequence[Line]) -> bool:
    head = file.read(3)
    file.seek(3 if head == codecs.BOM_UTF8 else 0)
    if size <= _WHOLE_BYTES and not head.startswith(_UTF16):
        own = file.read().split(b"\n")
        return all(line.number <= len(own) and _is_same(line.raw, own[line.number - 1]) for line in said if line.number)
    wanted = {line.number: line.raw for line in said if line.number}
    last = max(wanted, default=0)
    for number, own in _numbered(file, is_utf16=head.startswith(_UTF16)):
        if number > last:
            break
        if number in wanted and not _is_same(wanted.pop(number), own):
            return False
    return not wanted


def _is_same(said: bytes, own: bytes) -> bool:
    return said == own or (len(said) >= MAX_LINE_BYTES and said[:MAX_LINE_BYTES] == own[:MAX_LINE_BYTES])


def _numbered(file: BinaryIO, *, is_utf16: bool) -> Iterator[tuple[int, bytes]]:
    """Lines without their ends, from 1 on, in UTF-8 as ripgrep reads them; of a long line only its beginning."""
    number, is_start = 1, True
    for piece in _utf16_pieces(file) if is_utf16 else iter(lambda: file.readline(_PIECE), b""):
        if is_start:
            yield number, piece.removesuffix(b"\n")
        is_start = piece.endswith(b"\n")
        number += is_start


def _utf16_pieces(file: BinaryIO) -> Iterator[bytes]:
    text = io.TextIOWrapper(file, "utf-16", errors="replace", newline="\n")
    try:
        while piece := text.readline(_PIECE):
            yield piece.encode("utf-8", "replace")
    finally:
        text.detach()  # the file is its opener's to close
