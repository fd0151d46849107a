"""A turn that does things to real files, as tools and commands do; and trees, to compare before and after."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from kedge.engine.turn import TurnContext

Deed = Callable[[], object]


class Write(NamedTuple):
    path: Path
    data: bytes


MAX_BYTES = 2**30


class FileTurn:
    """`by_tool` and `by_command` say what the run with this prompt does; what follows in a prompt is done in order."""

    def __init__(self) -> None:
        self._deeds: dict[str, list[Write | Deed]] = {}

    def by_tool(self, prompt: str, path: Path, data: bytes) -> None:
        self._deeds.setdefault(prompt, []).append(Write(path, data))

    def by_command(self, prompt: str, deed: Deed) -> None:
        self._deeds.setdefault(prompt, []).append(deed)

    async def __call__(self, ctx: TurnContext) -> None:
        for deed in self._deeds.get(ctx.run.prompt, []):
            message = await ctx.begin_message(model="test/model")
            if isinstance(deed, Write):
                async with ctx.record_change(deed.path, deed.data):
                    deed.path.parent.mkdir(parents=True, exist_ok=True)
                    deed.path.write_bytes(deed.data)
            else:
                async with ctx.watch_files(os.environ, MAX_BYTES):
                    deed()
            await message.finish("end_turn")


Tree = dict[str, tuple[str, int, bytes]]


def tree_of(root: Path) -> Tree:
    """Everything below, but `.git`: kind, permission bits of files, content."""
    found: Tree = {}
    for directory, names, files in os.walk(os.fsencode(root)):
        names[:] = [name for name in names if name != b".git"]
        for name in [*names, *files]:
            path = directory + b"/" + name
            status = os.lstat(path)
            key = os.fsdecode(os.path.relpath(path, os.fsencode(root)))
            if stat.S_ISLNK(status.st_mode):
                found[key] = ("link", 0, os.readlink(path))  # noqa: PTH115 - a name may be any bytes
            elif stat.S_ISDIR(status.st_mode):
                found[key] = ("directory", 0, b"")
            elif stat.S_ISREG(status.st_mode):
                found[key] = ("file", stat.S_IMODE(status.st_mode), Path(os.fsdecode(path)).read_bytes())
            else:
                found[key] = ("special", 0, b"")
    return found
