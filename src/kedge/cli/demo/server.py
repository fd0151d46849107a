"""The demo's server: the real engine in a process of its own, so that it can be killed.

    python -m kedge.cli.demo.server DIRECTORY [PAUSE_AFTER]

Reads calls from standard input and replies on standard output, one JSON object per line. Its turns are scripts
(`engine.scripted`) that can be paused in the middle of a sentence: after PAUSE_AFTER words, or by a call.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from kedge.engine.engine import Engine
from kedge.engine.scripted import ScriptedTurn
from kedge.protocol.errors import KedgeError
from kedge.protocol.runs import Submission
from kedge.store.port import Claim, Draft
from kedge.store.sqlite.store import SqliteStore, random_id


def send(**line: Any) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(line) + b"\n")
    sys.stdout.buffer.flush()


class ReportingStore(SqliteStore):
    """Reports when a draft is stored, so that the demo can kill the server at an exact point."""

    async def append_drafts(self, claim: Claim, drafts: Sequence[Draft]) -> None:
        await super().append_drafts(claim, drafts)
        for draft in drafts:
            send(saved=draft.message_id, length=len(draft.text))


class Pacer:
    """Pauses a scripted turn after a number of words."""

    def __init__(self, pause_after: int | None) -> None:
        self._words_left = pause_after
        self._resumed = asyncio.Event()

    def pause_after(self, words: int) -> None:
        self._words_left = words
        self._resumed = asyncio.Event()

    def resume(self) -> None:
        self._words_left = None
        self._resumed.set()

    async def count_word(self) -> None:
        if self._words_left is None:
            return
        self._words_left -= 1
        if self._words_left <= 0:
            send(paused=True)
            await self._resumed.wait()


class Server:
    def __init__(self, engine: Engine, pacer: Pacer, workspace_id: str) -> None:
        self._engine = engine
        self._pacer = pacer
        self._workspace_id = workspace_id
        self._readers: set[asyncio.Task[None]] = set()

    async def answer(self, call: str, args: dict[str, Any]) -> object:
        engine, workspace_id = self._engine, self._workspace_id
        match call:
            case "create_session":
                return await engine.create_session(workspace_id, args["title"])
            case "accept":
                run_id = args.pop("run_id")
                return await engine.runs.accept(workspace_id, msgspec.convert(args, Submission), run_id=run_id)
            case "cancel_run":
                return await engine.store.cancel_run(workspace_id, args["run_id"])
            case "permissions":
                return await engine.store.pending_requests(workspace_id, "permission")
            case "grant":
                return await engine.answer_permission(workspace_id, args["id"], args["action"], args["by"])
            case "log":
                page = await engine.store.read_log(workspace_id, 0, limit=1000)
                return page.head, [event.frame.decode().removesuffix("\n\n") for event in page.events]
            case "subscribe":
                chunks = engine.subscribe(workspace_id, after=args["after"], log_id=args["log_id"])
                self._readers.add(asyncio.create_task(self._read(args["reader"], chunks)))
            case "pause":
                self._pacer.pause_after(args["after"])
            case "resume":
                self._pacer.resume()
            case _:
                raise AssertionError(f"unknown call {call!r}")
        return None

    async def _read(self, reader: str, chunks: AsyncIterator[bytes]) -> None:
        async for chunk in chunks:
            send(reader=reader, chunk=chunk.decode())

    async def close(self) -> None:
        await self._engine.shutdown()
        await asyncio.gather(*self._readers)


async def serve(directory: Path, pause_after: int | None) -> None:
    pacer = Pacer(pause_after)
    store = ReportingStore.open(directory / "data")
    engine = Engine(store, {"prompt": ScriptedTurn(pause=pacer.count_word)}, new_id=random_id)
    await engine.start()
    server = Server(engine, pacer, (await engine.open_workspace(directory / "workspace")).id)
    lines = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    while line := await lines.readline():
        call = msgspec.json.decode(line)
        try:
            send(reply=await server.answer(call["call"], call["args"]))
        except KedgeError as error:
            send(error=error.body)
    await server.close()


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else None))
