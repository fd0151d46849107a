"""A bound on the parts of a TOML key, checked before parsing: `tomllib` takes quadratic time for `a.a.a.…`.

The scan is linear. It splits valid TOML into strings, comments and the rest exactly as a parser does; what comes after
the first error in a text does not matter, because a parser stops there.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import stat
import time
from pathlib import Path
from typing import Any, NamedTuple

from kedge.config.errors import Problem
from kedge.config.toml_layout import Layout

MAX_PARTS = 32  # the keys of Kedge have five at most

_STRINGS_AND_COMMENTS = re.compile(
    r'"""(?:\\.|(?!""").)*+"{0,5}'
    r"|'''(?:(?!''').)*+'{0,5}"
    r'|"(?:\\.|[^"\\\n])*+"?'
    r"|'[^'\n]*+'?"
    r"|#[^\n]*+",
    re.DOTALL,
)
_KEY = re.compile(r"[A-Za-z0-9_\-. \t]++")


def line_of_deep_key(text: str) -> int | None:
    """The line of the first key with more than `MAX_PARTS` parts; None if there is none."""
    if text.count(".") < MAX_PARTS:
        return None
    plain = _STRINGS_AND_COMMENTS.sub(_replacement, text)
    for found in _KEY.finditer(plain):
        if found[0].count(".") >= MAX_PARTS:
            return plain.count("\n", 0, found.start()) + 1
    return None


def _replacement(found: re.Match[str]) -> str:
    """A string counts as one letter, so that quoted parts of a key stay together; lines keep their numbers."""
    return ("" if found[0].startswith("#") else "s") + "\n" * found[0].count("\n")


# Configuration files as documents: read once, and again only when they changed on the disk.


# A hundred times what anybody writes, and a second's work to parse; a repository could have anything under that name.
MAX_BYTES = 256 * 1024
# A file system's clock is coarse: a file this fresh can change once more without a trace in its times.
FRESH_NS = 2_000_000_000

Signature = tuple[int, int, int, int, int]


class Document(NamedTuple):
    """What a file says; one that cannot be used has problems and no values."""

    path: Path
    values: dict[str, Any]
    layout: Layout
    digest: bytes  # of its content: what tells a change from a touch
    problems: tuple[Problem, ...] = ()


class Files:
    """A cache of documents. Safe to use from several threads: at worst one reads what another has just read."""

    def __init__(self) -> None:
        self._known: dict[Path, tuple[Signature, Document]] = {}

    def read(self, path: Path) -> Document | None:
        """The document of a file as it is now, or None if there is none."""
        try:
            found = _signature(path.stat())
            known = self._known.get(path)
            if known is not None and known[0] == found:
                return known[1]
            signature, content = read_bytes(path)
        except OSError as error:
            self._known.pop(path, None)
            if error.errno in (errno.ENOENT, errno.ENOTDIR):
                return None
            return _useless(path, f"cannot be read: {error.strerror or error}", b"")
        document = parse(path, content)
        if time.time_ns() - max(signature[2:4]) > FRESH_NS:
            self._known[path] = (signature, document)
        else:
            self._known.pop(path, None)
        return document


def parse(path: Path, content: bytes) -> Document:
    import tomllib

    digest = hashlib.sha256(content).digest()
    try:
        text = content.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        return _useless(path, "is not UTF-8; save it as UTF-8", digest, line)
    if (deep := line_of_deep_key(text)) is not None:
        return _useless(path, f"has a key of more than {MAX_PARTS} parts", digest, deep)
    try:
        return Document(path, tomllib.loads(text), Layout(text), digest)
    except tomllib.TOMLDecodeError as error:
        line, said = _place(str(error), text)
        return _useless(path, f"is not TOML: {said}", digest, line)
    except RecursionError:
        return _useless(path, "is nested too deeply", digest)
    except ValueError:  # Python reads no integer of thousands of digits
        return _useless(path, "has a number that is too long", digest)


def read_bytes(path: Path) -> tuple[Signature, bytes]:
    """The content of a regular file, and the signature that belongs to it. Never waits: a pipe may have that name."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "it is not a file")
        if status.st_size > MAX_BYTES:
            raise OSError(errno.EFBIG, f"it is over {MAX_BYTES >> 10} KiB")
        with os.fdopen(fd, "rb", closefd=False) as file:
            return _signature(status), file.read(MAX_BYTES)
    finally:
        os.close(fd)


def _signature(status: os.stat_result) -> Signature:
    return status.st_dev, status.st_ino, status.st_mtime_ns, status.st_ctime_ns, status.st_size


def _useless(path: Path, why: str, digest: bytes, line: int = 0) -> Document:
    return Document(path, {}, Layout(""), digest or why.encode(), (Problem(str(path), line, "", why),))


def _place(said: str, text: str) -> tuple[int, str]:
    """tomllib ends with "(at line 3, column 7)" or "(at end of document)"."""
    what, _, where = said.rpartition(" (at ")
    if where.startswith("line "):
        line, _, column = where.removeprefix("line ").rstrip(")").partition(", column ")
        return int(line), f"{what}, in column {column}"
    return text.rstrip("\n").count("\n") + 1, f"{what or said}, at its end"
