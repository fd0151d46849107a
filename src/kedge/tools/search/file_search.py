"""What `glob`, `grep` and `ls` share: where a search begins, and its results, newest first."""

from __future__ import annotations

import asyncio
import heapq
import os
import stat
from collections.abc import Iterable
from contextlib import ExitStack, aclosing
from pathlib import Path
from typing import NamedTuple

from kedge.files.safe_open import stat_resolved
from kedge.tools.errors import ToolError
from kedge.tools.paths import is_inside, resolve, shown_path
from kedge.tools.port import Access, ToolScope
from kedge.tools.search import globs, ripgrep, verification

MAX_RESULTS = 100
_USE_PATH = "Give the directory as `path`, and a pattern that begins there."


class Start(NamedTuple):
    """Where a search begins: `base` is where ripgrep runs, `below` the way from there."""

    base: Path
    below: str
    shown: str
    is_dir: bool

    @property
    def path(self) -> Path:
        return self.base / self.below


async def start_of(place: ToolScope, given: str) -> Start:
    """Off the loop: a path may lead to a slow disk."""
    return await asyncio.to_thread(_start_of, place, given)


def _start_of(place: ToolScope, given: str) -> Start:
    path = resolve(place, given)
    shown = shown_path(place, path)
    try:
        status = stat_resolved(path)
    except OSError as error:
        raise ToolError(f"{shown} cannot be read ({error.strerror}).") from error
    if status is None:
        near = next(parent for parent in path.parents if os.path.isdir(parent))  # noqa: PTH112 never raises
        raise ToolError(f"{shown} does not exist. List {shown_path(place, near)} to see what is there.")
    is_dir = stat.S_ISDIR(status.st_mode)
    if is_inside(path, place.directory):
        return Start(place.directory, str(path.relative_to(place.directory)), shown, is_dir)
    return Start(path if is_dir else path.parent, "." if is_dir else path.name, shown, is_dir)


async def list_read_access(place: ToolScope, given: str) -> list[Access]:
    """Told wherever it is: what is free to read is the judge's to say."""
    start = await start_of(place, given)
    return [Access(kind="read", subject=str(start.path), description=f"search in {start.path}")]


async def files(place: ToolScope, start: Start, pattern: str | None = None) -> list[str]:
    """The files that are not ignored, as paths from `start.base`."""
    found: list[str] = []
    patterns = [] if pattern is None else patterns_of(start, pattern)
    with ExitStack() as stack:
        options = narrowed(stack, start, patterns)
        matches = globs.matcher([globs.below(start.below, each) for each in patterns]) if patterns else None
        options += ["--files", "--null", "--", start.below]
        searching = ripgrep.search(start.base, place.env, options, separator=b"\0", workspace=place.directory)
        async with aclosing(searching) as search:
            async for records in search:
                names = [os.fsdecode(record).removeprefix("./") for record in records]
                found += names if matches is None else [name for name in names if matches(name)]
    return await shown(place, start, await asyncio.to_thread(verification.names, start.base, found))


def patterns_of(start: Start, given: str) -> list[str]:
    """What a model wrote as one pattern, without braces, and from where the search begins."""
    if "\0" in given:
        raise ToolError("The pattern holds a NUL character, which no file's name can. Give it without.")
    patterns = globs.expand_braces(given)
    for pattern in patterns:
        globs.check_classes(pattern)
    return [_from_start(start, pattern) for pattern in patterns]


def _from_start(start: Start, pattern: str) -> str:
    parts = [part for part in pattern.split("/") if part != "."]
    if ".." in parts:
        raise ToolError(f"The pattern {pattern!r} leads up with `..`. {_USE_PATH}")
    if not pattern.startswith("/"):
        plain = "/".join(parts)
        return f"/{plain}" if pattern.startswith("./") and plain else plain or "**"  # `./*.py` is not at any depth
    root = start.path if start.is_dir else start.path.parent
    if parts[: len(root.parts)] == ["", *root.parts[1:]]:
        return "/" + ("/".join(parts[len(root.parts) :]) or "**")
    literal = next((index for index, part in enumerate(parts) if not globs.is_literal(part)), len(parts))
    head = Path(os.path.realpath("/".join(parts[:literal]) or "/"))  # perhaps a link leads there
    if not is_inside(head, root):
        raise ToolError(f"The pattern {pattern!r} is not below {start.shown}. {_USE_PATH}")
    rest = [*(globs.escape(part) for part in head.relative_to(root).parts), *parts[literal:]]
    return "/" + ("/".join(rest) or "**")


async def shown(place: ToolScope, start: Start, names: Iterable[str]) -> list[str]:
    """What a rule forbids to read is not found either. Off the loop: of maybe fifty thousand, each is resolved."""
    if place.is_hidden is None:
        return list(names)
    return await asyncio.to_thread(lambda: [name for name in names if is_shown(place, start, name)])


def is_shown(place: ToolScope, start: Start, name: str) -> bool:
    path = start.base / name
    return place.is_hidden is None or not (place.is_hidden(str(path)) or place.is_hidden(os.path.realpath(path)))


def narrowed(stack: ExitStack, start: Start, patterns: list[str]) -> list[str]:
    """ripgrep's options for these patterns. What an ignore file lets through explicitly comes with it: check again."""
    if not patterns:
        return []
    return stack.enter_context(ripgrep.only([globs.below(start.below, each) for each in patterns]))


def newest(base: Path, names: Iterable[str], count: int) -> list[str]:
    """The files that were changed last, the newest first; what is gone by now comes last. Blocks: not for the loop."""
    prefix = f"{base}{os.sep}"  # of maybe fifty thousand paths

    def changed_at(name: str) -> int:
        try:
            return os.lstat(prefix + name).st_mtime_ns
        except OSError:
            return 0

    return heapq.nlargest(count, names, key=changed_at)


def readable(name: str) -> str:
    """A file's name as text, whatever its bytes are."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
