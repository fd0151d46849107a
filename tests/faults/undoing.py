"""A server that works on files and undoes it, to be killed: `python -m tests.faults.undoing WHAT ROOT SESSION`."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from tests.support.file_turn import FileTurn
from tests.support.harness import Kedge
from tests.support.stores import STORES


def make_tree(root: Path) -> None:
    (root / "d").mkdir(parents=True)
    for name in ("changed", "removed", "d/moved"):
        (root / name).write_bytes(name.encode())
    (root / "link").symlink_to("changed")
    (root / "hollow").mkdir()


def work_of(root: Path) -> FileTurn:
    """What the run `work` does: files come, go, change, move; one of them by a tool."""
    turn = FileTurn()

    def command() -> None:
        (root / "changed").write_bytes(b"another content\n")
        (root / "changed").chmod(0o755)
        (root / "removed").unlink()
        (root / "d/moved").rename(root / "there")
        (root / "d").rmdir()
        (root / "link").unlink()
        (root / "link").symlink_to("there")
        (root / "made/deep").mkdir(parents=True)
        (root / "made/deep/file").write_bytes(b"made")

    turn.by_command("work", command)
    turn.by_tool("work", root / "hollow/by-tool", b"by a tool")
    return turn


def main(what: str, root: str, session_id: str) -> None:
    asyncio.run(do(what, Path(root), session_id))


async def do(what: str, directory: Path, session_id: str) -> None:
    async with Kedge(STORES[0], directory) as kedge:
        rewinder, place = kedge.engine.undos, (kedge.workspace_id, session_id)
        match what:
            case "work":
                kedge.turns["prompt"] = work_of(directory / "workspace")
                await kedge.end((await kedge.send(session_id, "work", run_id="the-work")).run_id)
            case "undo":
                await rewinder.undo(*place)
            case "redo":
                await rewinder.redo(*place)
            case _:
                await rewinder.fork(*place, (await kedge.messages(session_id))[0].id, with_files=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
