"""Code shared by `glob`, `grep` and `ls`: the start of a search, patterns, and the filtering of results.

ripgrep opens files by name. A link that replaces a file or a directory at the right moment leads it outside the
directory to search. So each result is read again through directories opened without following links, and dropped if it
differs.
"""

from __future__ import annotations

import asyncio
import codecs
import heapq
import io
import os
import stat
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, aclosing
from pathlib import Path
from typing import BinaryIO, NamedTuple

from kedge.files.safe_open import open_directory, stat_resolved
from kedge.tools.errors import ToolError
from kedge.tools.port import Access, ToolScope, display_path, resolve_path
from kedge.tools.search import ripgrep
from kedge.tools.search.ripgrep import (
    check_classes,
    escape_glob,
    expand_braces,
    is_literal,
    make_glob_matcher,
    prefix_pattern,
)

MAX_RESULTS = 100
_USE_PATH = "Give the directory as `path`, and a pattern that begins there."

MAX_LINE_BYTES = 2_000  # of a longer line, ripgrep prints at least this much and a note
_MAX_READ_BYTES = 8 * 1024 * 1024  # a larger file is read line by line
_PIECE = 64 * 1024
_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


class Start(NamedTuple):
    """The start of a search. ripgrep runs in `base`, and searches `below`, a path relative to it."""

    base: Path
    below: str
    shown: str
    is_dir: bool

    @property
    def path(self) -> Path:
        return self.base / self.below


async def find_start(scope: ToolScope, given: str) -> Start:
    return await asyncio.to_thread(_find_start, scope, given)


def _find_start(scope: ToolScope, given: str) -> Start:
    path = resolve_path(scope, given)
    shown = display_path(scope, path)
    try:
        status = stat_resolved(path)
    except OSError as error:
        raise ToolError(f"{shown} cannot be read ({error.strerror}).") from error
    if status is None:
        near = next(parent for parent in path.parents if os.path.isdir(parent))  # noqa: PTH112 never raises
        raise ToolError(f"{shown} does not exist.", f"List {display_path(scope, near)} to see what is there.")
    is_dir = stat.S_ISDIR(status.st_mode)
    if path.is_relative_to(scope.directory):
        return Start(scope.directory, str(path.relative_to(scope.directory)), shown, is_dir)
    return Start(path if is_dir else path.parent, "." if is_dir else path.name, shown, is_dir)


async def list_read_access(scope: ToolScope, given: str) -> list[Access]:
    start = await find_start(scope, given)
    return [Access(kind="read", subject=str(start.path), description=f"search in {start.path}")]


async def list_files(scope: ToolScope, start: Start, pattern: str | None = None) -> list[str]:
    """List files that are not ignored, relative to `start.base`."""
    found: list[str] = []
    patterns = [] if pattern is None else parse_patterns(start, pattern)
    with ExitStack() as stack:
        options = make_filter_options(stack, start, patterns)
        matches = make_matcher(start, patterns)
        options += ["--files", "--null", "--", start.below]
        searching = ripgrep.run_ripgrep(start.base, scope.env, options, separator=b"\0", workspace=scope.directory)
        async with aclosing(searching) as search:
            async for records in search:
                names = [os.fsdecode(record).removeprefix("./") for record in records]
                found += names if matches is None else [name for name in names if matches(name)]
    return await keep_visible(scope, start, await asyncio.to_thread(verify_names, start.base, found))


def parse_patterns(start: Start, given: str) -> list[str]:
    """Expand the braces of a pattern and make it relative to the start of the search. Raises ToolError."""
    if "\0" in given:
        raise ToolError("The pattern contains a NUL character, which no file name can.", "Give it without.")
    patterns = expand_braces(given)
    for pattern in patterns:
        check_classes(pattern)
    return [_make_relative(start, pattern) for pattern in patterns]


def _make_relative(start: Start, pattern: str) -> str:
    parts = [part for part in pattern.split("/") if part != "."]
    if ".." in parts:
        raise ToolError(f"The pattern {pattern!r} leads up with `..`.", _USE_PATH)
    if not pattern.startswith("/"):
        plain = "/".join(parts)
        return f"/{plain}" if pattern.startswith("./") and plain else plain or "**"  # `./*.py`: this directory only
    root = start.path if start.is_dir else start.path.parent
    if parts[: len(root.parts)] == ["", *root.parts[1:]]:
        return "/" + ("/".join(parts[len(root.parts) :]) or "**")
    literal = next((index for index, part in enumerate(parts) if not is_literal(part)), len(parts))
    head = Path(os.path.realpath("/".join(parts[:literal]) or "/"))  # resolve links
    if not head.is_relative_to(root):
        raise ToolError(f"The pattern {pattern!r} is not below {start.shown}.", _USE_PATH)
    rest = [*(escape_glob(part) for part in head.relative_to(root).parts), *parts[literal:]]
    return "/" + ("/".join(rest) or "**")


async def keep_visible(scope: ToolScope, start: Start, names: Iterable[str]) -> list[str]:
    """Remove files that a rule forbids to read. In a thread: there may be fifty thousand, and each is resolved."""
    if scope.is_hidden is None:
        return list(names)
    return await asyncio.to_thread(lambda: [name for name in names if is_visible(scope, start, name)])


def is_visible(scope: ToolScope, start: Start, name: str) -> bool:
    path = start.base / name
    return scope.is_hidden is None or not (scope.is_hidden(str(path)) or scope.is_hidden(os.path.realpath(path)))


def make_filter_options(stack: ExitStack, start: Start, patterns: list[str]) -> list[str]:
    """Return ripgrep's options for these patterns. They let through too much: match the results again."""
    if not patterns:
        return []
    return stack.enter_context(ripgrep.make_include_options(_from_base(start, patterns)))


def make_matcher(start: Start, patterns: list[str]) -> Callable[[str], bool] | None:
    """Return a function that matches paths relative to `start.base`; None without patterns."""
    return make_glob_matcher(_from_base(start, patterns)) if patterns else None


def _from_base(start: Start, patterns: list[str]) -> list[str]:
    return [prefix_pattern(start.below, each) for each in patterns]


def pick_newest(base: Path, names: Iterable[str], count: int) -> list[str]:
    """Return the files changed last, newest first. Blocks."""
    prefix = f"{base}{os.sep}"  # faster than Path for fifty thousand names

    def changed_at(name: str) -> int:
        try:
            return os.lstat(prefix + name).st_mtime_ns
        except OSError:
            return 0  # deleted meanwhile

    return heapq.nlargest(count, names, key=changed_at)


def to_text(name: str) -> str:
    """Return a file name with invalid bytes replaced."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


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
