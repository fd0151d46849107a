"""ripgrep as a subprocess, with bounds on time and output. It is killed when the caller stops reading.

Ignored are `.git`, files that git ignores (also outside of a repository), and those that `.ignore` or the workspace's
`.kedgeignore` names. Hidden files are searched, because projects have many. Of file name patterns, `*.py` matches at
any depth, `src/**/*.{ts,tsx}` from the start of the search.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from kedge.config.rules import join_wildcards
from kedge.files import listing
from kedge.tools.errors import ToolError

T = TypeVar("T")

SEARCH_S = 60.0  # a larger tree should be searched in parts
MAX_BYTES = 64 * 1024 * 1024  # of ripgrep's output
_CHUNK = 256 * 1024
_ERROR_CHARS = 2_000
KEDGEIGNORE = ".kedgeignore"

MAX_PATTERN_CHARS = 1_000
MAX_ALTERNATIVES = 100  # of braces, multiplied

_SPECIAL = re.compile(r"([*?\[\]{}\\!#])")


class RipgrepError(ToolError):
    """ripgrep's own error message, mostly about an invalid expression."""


def find_program_or_fail(workspace: Path) -> str:
    if found := listing.find_ripgrep(workspace):
        return found
    raise ToolError("ripgrep is not installed.", "Use bash with find or grep instead.")


@contextlib.contextmanager
def make_include_options(patterns: Sequence[str]) -> Generator[list[str]]:
    """Yield options that let through files that may match and are not ignored; the caller matches them again.

    ripgrep's own `-g` would override ignore rules, and its `?` is a byte instead of a character.
    """
    import tempfile  # late: few searches need it

    with tempfile.NamedTemporaryFile("w", prefix="kedge-only-", encoding="utf-8", errors="surrogateescape") as file:
        file.write("\n".join(["*", "!*/", *(f"!{loosen_glob(pattern)}" for pattern in patterns), ""]))
        file.flush()
        yield ["--ignore-file", file.name]


async def run_ripgrep(
    directory: Path, env: Mapping[str, str], options: Sequence[str], *, separator: bytes, workspace: Path
) -> AsyncGenerator[list[bytes]]:
    """Yield groups of complete records of ripgrep's output. Raises `RipgrepError`, or ToolError at a bound.

    ripgrep runs in `directory`; a program inside the `workspace` is never used. Use `contextlib.aclosing`, which kills
    ripgrep.
    """
    command = [find_program_or_fail(workspace), "--no-config", "--no-messages", "--hidden", "--no-require-git"]
    command += ["--color=never", "-g", "!.git"]
    kedgeignore = directory / KEDGEIGNORE
    # After our own ignore file, because the last one has precedence.
    ignored = ["--ignore-file", str(kedgeignore)] if kedgeignore.is_file() else []
    position = options.index("--") if "--" in options else len(options)
    process = await asyncio.create_subprocess_exec(
        *(*command, *options[:position], *ignored, *options[position:]),
        cwd=directory,
        env=dict(env),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    errors = asyncio.ensure_future(process.stderr.read())  # short, because of `--no-messages`
    deadline = asyncio.get_running_loop().time() + SEARCH_S
    rest, size = b"", 0
    try:
        while chunk := await _wait(process.stdout.read(_CHUNK), deadline):
            size += len(chunk)
            if size > MAX_BYTES:
                raise ToolError("There are too many results.", "Search for something more specific.")
            *records, rest = (rest + chunk).split(separator)
            if records:
                yield records
        if rest:
            yield [rest]
        code = await _wait(process.wait(), deadline)
        message = (await errors).decode("utf-8", "replace").strip()[:_ERROR_CHARS]
        if code == 2 and message:  # 1: nothing found; 2 without a message: some file could not be read
            raise RipgrepError(message)
    finally:
        errors.cancel()
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()


async def _wait(work: Coroutine[Any, Any, T], deadline: float) -> T:
    try:
        async with asyncio.timeout_at(deadline):
            return await work
    except TimeoutError:
        raise ToolError(f"The search took over {SEARCH_S:.0f} s.", "Search in a smaller directory.") from None


def expand_braces(pattern: str) -> list[str]:
    """Expand `*.{ts,tsx}` to `*.ts` and `*.tsx`; braces may be nested. Raises ToolError."""
    if len(pattern) > MAX_PATTERN_CHARS:
        raise ToolError(f"The pattern is over {MAX_PATTERN_CHARS} characters long.", "Use a shorter one.")
    expanded = _expand(pattern)
    if len(expanded) > MAX_ALTERNATIVES:
        raise ToolError(f"The pattern expands to over {MAX_ALTERNATIVES} patterns.", "Use a simpler one.")
    return expanded


def _expand(pattern: str) -> list[str]:
    start = _find_unescaped(pattern, "{")
    if start < 0:
        return [pattern]
    depth, commas = 0, [start]
    for i in range(start, len(pattern)):
        match pattern[i]:
            case "{":
                depth += 1
            case "," if depth == 1:
                commas.append(i)
            case "}":
                depth -= 1
                if depth == 0:
                    ends = [*commas[1:], i]
                    inner = [pattern[a + 1 : b] for a, b in zip(commas, ends, strict=True)]
                    whole = [pattern[:start] + each + pattern[i + 1 :] for each in inner[: MAX_ALTERNATIVES + 1]]
                    return [each for one in whole for each in _expand(one)][: MAX_ALTERNATIVES + 1]
            case _:
                pass
    raise ToolError(f"The pattern {pattern!r} has a brace that is not closed.")


def _find_unescaped(pattern: str, character: str) -> int:
    i = 0
    while i < len(pattern):
        if pattern[i] == "\\":
            i += 1
        elif pattern[i] == character:
            return i
        i += 1
    return -1


def check_classes(pattern: str) -> None:
    """Raise `ToolError` for an unclosed bracket, which would match nothing."""
    i = 0
    while i < len(pattern):
        if pattern[i] == "\\":
            i += 1
        elif pattern[i] == "[":
            i = _class_end(pattern, i)
            if i < 0:
                raise ToolError(
                    f"The pattern {pattern!r} has a [ that is not closed.", "Write \\[ for the character itself."
                )
        i += 1


def is_literal(part: str) -> bool:
    return _SPECIAL.search(part) is None


def escape_glob(path: str) -> str:
    """Return a pattern that matches only this path."""
    return _SPECIAL.sub(r"\\\1", path)


def prefix_pattern(directory: str, pattern: str) -> str:
    """Make a pattern relative to `directory` relative to the directory above. One without a slash matches any depth."""
    plain = pattern.removeprefix("./")
    if "/" not in plain.rstrip("/") or directory in ("", "."):
        return plain
    return f"/{escape_glob(directory)}/{plain.lstrip('/')}"


def loosen_glob(pattern: str) -> str:
    """Return a pattern without `?` and classes that matches at least as much, and means the same to every program."""
    pieces: list[str] = []
    is_loose = False  # the last piece is a star added here: a second one would mean directories
    i = 0
    while i < len(pattern):
        end = i + 1
        if pattern[i] == "\\":
            end = i + 2
        elif pattern[i] == "[":
            end = _class_end(pattern, i) + 1 or end
        piece = "*" if pattern[i] == "?" or end - i > 2 else pattern[i:end]
        was_loose, is_loose = is_loose, piece != pattern[i:end]
        if piece == "*" and (was_loose or (is_loose and pieces[-1:] == ["*"])):
            is_loose = True
        else:
            pieces.append(piece)
        i = end
    return "".join(pieces)


def make_glob_matcher(patterns: list[str]) -> Callable[[str], bool]:
    """Return a function that tells whether a path matches one of these patterns, whose braces are expanded."""
    matches = re.compile("|".join(f"(?:{_regex(pattern)})" for pattern in patterns), re.DOTALL).fullmatch
    return lambda path: matches(path) is not None


def _regex(pattern: str) -> str:
    pattern = pattern.removeprefix("./")
    is_anywhere = "/" not in pattern.rstrip("/")
    pattern = pattern.removeprefix("/")
    parts = [[""]] if not is_anywhere else [[""], [""]]  # any directories between two of them, stars within them
    end, i = "", 0
    while i < len(pattern):
        is_start = i == 0 or pattern[i - 1] == "/"
        if is_start and pattern.startswith("**/", i):
            parts.append([""])
            i += 3
        elif is_start and pattern[i:] == "**":
            end = ".*"
            i += 2
        elif pattern[i] == "*":
            parts[-1].append("")
            i += 1
        else:
            piece, i = _character(pattern, i)
            parts[-1][-1] += piece
    return join_wildcards([join_wildcards(pieces, "[^/]") for pieces in parts], "(?:[^/]*/)") + end


def _character(pattern: str, i: int) -> tuple[str, int]:
    """Return the regex for the character or class at `i`, and the index after it."""
    if pattern[i] == "?":
        return "[^/]", i + 1
    if pattern[i] == "[" and (end := _class_end(pattern, i)) > 0:
        return _class(pattern[i + 1 : end]), end + 1
    if pattern[i] == "\\" and i + 1 < len(pattern):
        return re.escape(pattern[i + 1]), i + 2
    return re.escape(pattern[i]), i + 1


def _class_end(pattern: str, start: int) -> int:
    """Return the index of the closing bracket, or -1. A bracket right at the start is a member of the class."""
    i = start + 1
    if pattern[i : i + 1] in ("!", "^"):
        i += 1
    return pattern.find("]", i + 1)


def _class(inner: str) -> str:
    negated = inner[0] in "!^"
    body = re.sub(r"([\\\[\]^&~|])", r"\\\1", inner[1:] if negated else inner)
    return f"[^/{body}]" if negated else f"(?!/)[{body}]"
