"""Code shared by `glob`, `grep` and `ls`: the start of a search, patterns, and the filtering of results."""

from __future__ import annotations

import asyncio
import heapq
import os
import stat
from collections.abc import Callable, Iterable
from contextlib import ExitStack, aclosing
from pathlib import Path
from typing import NamedTuple

from kedge.files.safe_open import stat_resolved
from kedge.tools.errors import ToolError
from kedge.tools.port import Access, ToolScope, display_path, is_inside, resolve_path
from kedge.tools.search import globs, ripgrep, verification

MAX_RESULTS = 100
_USE_PATH = "Give the directory as `path`, and a pattern that begins there."


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
    if is_inside(path, scope.directory):
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
    return await keep_visible(scope, start, await asyncio.to_thread(verification.verify_names, start.base, found))


def parse_patterns(start: Start, given: str) -> list[str]:
    """Expand the braces of a pattern and make it relative to the start of the search. Raises ToolError."""
    if "\0" in given:
        raise ToolError("The pattern contains a NUL character, which no file name can.", "Give it without.")
    patterns = globs.expand_braces(given)
    for pattern in patterns:
        globs.check_classes(pattern)
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
    literal = next((index for index, part in enumerate(parts) if not globs.is_literal(part)), len(parts))
    head = Path(os.path.realpath("/".join(parts[:literal]) or "/"))  # resolve links
    if not is_inside(head, root):
        raise ToolError(f"The pattern {pattern!r} is not below {start.shown}.", _USE_PATH)
    rest = [*(globs.escape(part) for part in head.relative_to(root).parts), *parts[literal:]]
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
    return globs.make_matcher(_from_base(start, patterns)) if patterns else None


def _from_base(start: Start, patterns: list[str]) -> list[str]:
    return [globs.prefix_pattern(start.below, each) for each in patterns]


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
