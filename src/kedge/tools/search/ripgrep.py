"""ripgrep, run for a search: its walk and its ignore rules, our bounds. It ends when nobody waits for it any more.

Ignored is what git ignores (in all its forms, also where there is no repository), what `.ignore` and the workspace's
`.kedgeignore` name, and `.git` itself. Hidden files are searched: much of a project is hidden.
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

SEARCH_S = 60.0  # of one search: a tree that takes longer should be searched in parts
MAX_BYTES = 64 * 1024 * 1024  # of what ripgrep says; more is no answer to anything
_CHUNK = 256 * 1024
_ERROR_CHARS = 2_000
KEDGEIGNORE = ".kedgeignore"


class Refused(ToolError):
    """ripgrep cannot do it, in its own words: mostly an expression that it cannot read."""


def program(workspace: Path) -> str:
    """The one that was installed with Kedge, or the user's own."""
    if found := listing.find_ripgrep(workspace):
        return found
    raise ToolError("ripgrep is not installed, so nothing can be searched. Use bash with find or grep instead.")


@contextlib.contextmanager
def only(patterns: Sequence[str]) -> Generator[list[str]]:
    """Options that let through what may match and is not ignored; the caller checks again, by characters.

    ripgrep's own `-g` would undo ignore rules, and its `?` is a byte.
    """
    with tempfile.NamedTemporaryFile("w", prefix="kedge-only-", encoding="utf-8", errors="surrogateescape") as file:
        file.write("\n".join(["*", "!*/", *(f"!{globs.loosened(pattern)}" for pattern in patterns), ""]))
        file.flush()
        yield ["--ignore-file", file.name]


async def search(
    directory: Path, env: Mapping[str, str], options: Sequence[str], *, separator: bytes, workspace: Path
) -> AsyncGenerator[list[bytes]]:
    """What ripgrep says, in groups of whole records. Raises `Refused` in its words if it can't do it.

    It runs in `directory`, and is not one that lies in the `workspace`.

    Close it (`contextlib.aclosing`) when leaving early: that ends ripgrep.
    """
    command = [
        program(workspace),
        "--no-config",
        "--no-messages",
        "--hidden",
        "--no-require-git",
        "--color=never",
        "-g",
        "!.git",
    ]
    kedgeignore = directory / KEDGEIGNORE
    # The last one has the last word: what is ignored stays so.
    ignored = ["--ignore-file", str(kedgeignore)] if kedgeignore.is_file() else []
    place = options.index("--") if "--" in options else len(options)
    process = await asyncio.create_subprocess_exec(
        *(*command, *options[:place], *ignored, *options[place:]),
        cwd=directory,
        env=dict(env),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    complaint = asyncio.ensure_future(process.stderr.read())  # `--no-messages`: of one mistake, not of each file
    deadline = asyncio.get_running_loop().time() + SEARCH_S
    rest, size = b"", 0
    try:
        while chunk := await _in_time(process.stdout.read(_CHUNK), deadline):
            size += len(chunk)
            if size > MAX_BYTES:
                raise ToolError("There are too many results to read. Search for something more specific.")
            *records, rest = (rest + chunk).split(separator)
            if records:
                yield records
        if rest:
            yield [rest]
        code = await _in_time(process.wait(), deadline)
        said = (await complaint).decode("utf-8", "replace").strip()[:_ERROR_CHARS]
        if code == 2 and said:  # 1 means that nothing was found; without words, some file could not be read
            raise Refused(said)
    finally:
        complaint.cancel()
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()


async def _in_time(work: Coroutine[Any, Any, T], deadline: float) -> T:
    try:
        async with asyncio.timeout_at(deadline):
            return await work
    except TimeoutError:
        raise ToolError(f"The search took over {SEARCH_S:.0f} s. Search in a smaller directory.") from None
