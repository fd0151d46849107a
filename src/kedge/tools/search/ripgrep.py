"""ripgrep as a subprocess, with bounds on time and output. It is killed when the caller stops reading.

Ignored are `.git`, files that git ignores (also outside of a repository), and those that `.ignore` or the workspace's
`.kedgeignore` names. Hidden files are searched, because projects have many.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncGenerator, Coroutine, Generator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from kedge.files import listing
from kedge.tools.errors import ToolError
from kedge.tools.search import globs

T = TypeVar("T")

SEARCH_S = 60.0  # a larger tree should be searched in parts
MAX_BYTES = 64 * 1024 * 1024  # of ripgrep's output
_CHUNK = 256 * 1024
_ERROR_CHARS = 2_000
KEDGEIGNORE = ".kedgeignore"


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
    with tempfile.NamedTemporaryFile("w", prefix="kedge-only-", encoding="utf-8", errors="surrogateescape") as file:
        file.write("\n".join(["*", "!*/", *(f"!{globs.loosen(pattern)}" for pattern in patterns), ""]))
        file.flush()
        yield ["--ignore-file", file.name]


async def run_ripgrep(
    directory: Path, env: Mapping[str, str], options: Sequence[str], *, separator: bytes, workspace: Path
) -> AsyncGenerator[list[bytes]]:
    """Yield groups of complete records of ripgrep's output. Raises `RipgrepError`, or ToolError at a bound.

    ripgrep runs in `directory`; a program inside the `workspace` is never used. Use `contextlib.aclosing`, which kills
    ripgrep.
    """
    command = [
        find_program_or_fail(workspace),
        "--no-config",
        "--no-messages",
        "--hidden",
        "--no-require-git",
        "--color=never",
        "-g",
        "!.git",
    ]
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
