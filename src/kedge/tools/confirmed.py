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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple

from kedge.files.opening import open_directory, open_file

_PIECE = 64 * 1024  # of a line: more is never shown
_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


class Line(NamedTuple):
    number: str  # none: what ripgrep says of a binary file
    text: str
    is_match: bool


def names(base: Path, found: Sequence[str]) -> list[str]:
    """Those of the paths from `base` that are there, in their order. Blocks: not for the loop."""
    by_directory: defaultdict[str, set[str]] = defaultdict(set)
    for path in found:
        directory, _, name = path.rpartition("/")
        by_directory[directory].add(name)
    there = {directory: wanted & _entries(base / directory) for directory, wanted in by_directory.items()}
    return [path for path in found if (at := path.rpartition("/"))[2] in there[at[0]]]


def lines(base: Path, found: Mapping[str, list[Line]], shorten: Callable[[bytes], str]) -> dict[str, list[Line]]:
    """The files whose lines are as ripgrep says; `shorten` makes the text of a line. Blocks: not for the loop."""
    return {name: said for name, said in found.items() if _has_lines(base / name, said, shorten)}


def _entries(directory: Path) -> set[str]:
    try:
        # Opened again: the descriptor of the walk cannot be read from.
        with open_directory(directory) as at:
            fd = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=at)
        try:
            return set(os.listdir(fd))  # noqa: PTH208 - of a descriptor
        finally:
            os.close(fd)
    except OSError:
        return set()


def _has_lines(path: Path, said: Iterable[Line], shorten: Callable[[bytes], str]) -> bool:
    wanted = {int(line.number): line.text for line in said if line.number}
    try:
        with os.fdopen(open_file(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                return False
            last = max(wanted, default=0)
            for number, line in _numbered(file):
                if number > last:
                    break
                if number in wanted and shorten(line) != wanted.pop(number):
                    return False
    except OSError:
        return False
    return not wanted


def _numbered(file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Lines without their ends, from 1 on, in UTF-8 as ripgrep reads them; of a long line only its beginning."""
    head = file.read(3)
    file.seek(3 if head == codecs.BOM_UTF8 else 0)
    if head.startswith(_UTF16):
        text = io.TextIOWrapper(file, "utf-16", errors="replace", newline="\n")
        pieces = (piece.encode("utf-8", "replace") for piece in iter(lambda: text.readline(_PIECE), ""))
    else:
        pieces = iter(lambda: file.readline(_PIECE), b"")
    number, is_start = 1, True
    for piece in pieces:
        if is_start:
            yield number, piece.removesuffix(b"\n")
        is_start = piece.endswith(b"\n")
        number += is_start
