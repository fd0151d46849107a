"""A server whose files may not grow, as on a full disk: `python -m tests.faults.limited DIRECTORY`.

Prints what callers were told, line by line, as tests.faults.child does: also what was refused.
"""

from __future__ import annotations

import asyncio
import resource
import sys
from pathlib import Path

from kedge.protocol.errors import StoreUnavailable
from tests.faults.child import Server, acknowledge

ROOM_BYTES = 512 * 1024  # enough for a small prompt, and not for a large one
NOTHING_BYTES = 32 * 1024  # the log is longer already; what this program prints is not
LARGE = "say " + "x" * 3_000_000


def allow_files_of(size_bytes: int) -> None:
    """From here on no file is written beyond this size. (Python ignores the signal for it: writing fails.)"""
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, resource.RLIM_INFINITY))


async def try_to_send(server: Server, run_id: str, session_id: str, script: str) -> None:
    try:
        await server.send(run_id, session_id, script)
    except StoreUnavailable as error:
        acknowledge("refused", run_id=run_id, message=error.message)


async def main(root: Path) -> None:
    for name in ("workspace", "effects"):
        (root / name).mkdir()
    server = Server(root)
    await server.start()
    busy, idle, other = [await server.session(title) for title in ("busy", "idle", "other")]
    await server.send("before", idle, "say before")
    await server.end("before")
    await server.send("running", busy, "say begun\nwait busy\nsay stored later")
    await server.send("behind", busy, "say behind")
    await server.gates.reached("busy")

    allow_files_of((root / "data" / "kedge.db-wal").stat().st_size + ROOM_BYTES)
    await asyncio.gather(
        server.send("small-1", idle, "wait forever-1"),
        try_to_send(server, "large", other, LARGE),
        server.send("small-2", idle, "say small"),
    )
    await server.gates.reached("forever-1")
    allow_files_of(NOTHING_BYTES)
    await try_to_send(server, "no-room", other, "say no room")
    server.gates.open("busy")  # the turn meets the full disk, and waits for it
    ending = asyncio.create_task(server.end("running"))
    done, _ = await asyncio.wait({ending}, timeout=0.5)
    acknowledge("still_running", is_ended=bool(done))

    allow_files_of(resource.RLIM_INFINITY)
    await ending
    server.gates.open("forever-1")
    await server.end("behind", "small-1", "small-2")
    await server.send("no-room", other, "say there is room")
    await server.send("large", other, LARGE)
    await server.end("no-room", "large")
    await server.stop()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
