"""A server without HTTP, as a process of its own that can be killed: `python -m tests.faults.child MODE DIRECTORY`.

It prints one line of JSON, at once, for everything that it acknowledged to a caller. `tell` plays the story: all that
can happen to a run, up to an orderly stop with some work left. `resume` takes over whatever a dead one left and works
until nothing is open. `upgrade` opens the store with a newer schema. With KEDGE_RECORD=FILE it notes every failpoint
that it passes.
"""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from kedge import failpoints
from kedge.engine.engine import Engine
from kedge.engine.scripted import Gates, ScriptedTurn
from kedge.protocol.events import Event
from kedge.protocol.requests import PermissionAction, PermissionRequest, QuestionRequest
from kedge.protocol.runs import RunKind, Submission
from kedge.protocol.sessions import SessionChange
from kedge.store.sqlite import database
from kedge.store.sqlite.store import SqliteStore, random_id
from tests.support.reader import Reader

KINDS: tuple[RunKind, ...] = ("prompt", "shell", "summarize", "agent")
GATES = ("busy", "forever-1", "forever-2", "forever-3", "forever-4", "forever-5")
NEWER = database.Migration("9999_newer", "CREATE TABLE newer (id INTEGER PRIMARY KEY)")

# A process that works until it is ended, and leaves its number; in a server that was told to settle it does nothing.
LONG_PROCESS = '[ -n "$KEDGE_SETTLE" ] || { echo $$ > "$0.$$" && exec sleep 60\n}\n'


def acknowledge(what: str, **facts: Any) -> None:
    os.write(1, json.dumps({"ack": what, **facts}).encode() + b"\n")
    failpoints.hit("acknowledged", what)  # a kill right after the answer: it must have been durable before


class Server:
    def __init__(self, root: Path) -> None:
        self.root = root
        self.gates = Gates()
        self.store = SqliteStore.open(root / "data")
        turns = dict.fromkeys(KINDS, ScriptedTurn(self.gates))
        self.engine = Engine(self.store, turns, new_id=random_id, term_s=0.3, kill_s=0.5)
        self.reader = Reader()
        self.workspace_id = ""
        self._recorded = asyncio.Event()
        failpoints.watch(lambda name: self._recorded.set() if name == "record_process.published" else None)

    async def start(self) -> None:
        await self.engine.start()
        self.workspace_id = (await self.engine.open_workspace(self.root / "workspace")).id
        self._reading = asyncio.create_task(
            self.reader.follow(self.engine.subscribe(self.workspace_id, after=self.reader.cursor))
        )

    async def stop(self) -> None:
        await self.engine.shutdown(grace_s=0)
        await self._reading
        acknowledge("stopped")

    # what callers do, each told when, and only when, they were answered

    async def session(self, title: str) -> str:
        session_id = (await self.engine.create_session(self.workspace_id, title)).id
        acknowledge("session", id=session_id, title=title)
        return session_id

    async def send(self, run_id: str, session_id: str, *script: str, **fields: Any) -> str:
        submission = Submission(session_id=session_id, prompt="\n".join(script), **fields)
        receipt = await self.engine.runs.accept(self.workspace_id, submission, run_id=run_id)
        acknowledge(
            "receipt", run_id=run_id, seq=receipt.seq, session_id=session_id, prompt=submission.prompt, **fields
        )
        return run_id

    async def cancel(self, session_id: str) -> None:
        acknowledge("cancel", runs=await self.engine.store.cancel_session(self.workspace_id, session_id))

    async def cancel_run(self, run_id: str) -> None:
        await self.engine.store.cancel_run(self.workspace_id, run_id)
        acknowledge("cancel", runs=[run_id])

    async def end(self, *run_ids: str) -> None:
        for run_id in run_ids:
            run = await self.engine.wait(self.workspace_id, run_id)
            end = await self.engine.runs.wait_end(self.workspace_id, run_id)
            acknowledge("end", run_id=run_id, state=run.state, text=end.text, message_id=end.message_id)

    async def asked(self, run_id: str) -> str:
        """Until a request of the run is shown that nobody answered yet."""
        answered = {getattr(e.payload, "id", "") for e in self.reader.log if e.type.endswith("_notification")}

        def matches(event: Event) -> bool:
            request = event.payload
            if not isinstance(request, PermissionRequest | QuestionRequest):
                return False
            return request.run_id == run_id and request.id not in answered

        request = (await self.reader.event(matches)).payload
        assert isinstance(request, PermissionRequest | QuestionRequest)
        acknowledge("asked", id=request.id, run_id=run_id)
        return request.id

    async def allow(self, request_id: str, action: PermissionAction = "allow") -> None:
        receipt = await self.engine.answer_permission(self.workspace_id, request_id, action, by="child")
        acknowledge("answer", id=request_id, by=receipt.by, action=receipt.action)

    async def answer(self, request_id: str) -> None:
        receipt = await self.engine.answer_question(self.workspace_id, request_id, ["blue"], by="child")
        acknowledge("answer", id=request_id, by=receipt.by, action=receipt.action)

    async def seen(self, type: str, run_id: str, **fields: object) -> None:
        def matches(event: Event) -> bool:
            wanted = {"run_id": run_id, **fields}
            return event.type == type and all(getattr(event.payload, k, None) == v for k, v in wanted.items())

        await self.reader.event(matches)

    async def has_process(self, run_id: str) -> None:
        """Until a process of the run is on record. The log does not tell, so the rows are asked whenever one is."""

        def is_recorded(db: sqlite3.Connection) -> bool:
            return db.execute("SELECT 1 FROM processes WHERE run_id = ?", (run_id,)).fetchone() is not None

        while True:
            self._recorded.clear()
            if await self.store._readers.read(is_recorded):
                return
            await self._recorded.wait()

    @property
    def long_process(self) -> str:
        return f"process sh {self.root / 'processes' / 'long'}"

    def effect(self, name: str) -> str:
        """A tool call that the world outside the store notices."""
        return f"process printf x >> {self.root / 'effects' / name}"


# The story, in acts that are played side by side.


async def queueing(server: Server) -> None:
    session = await server.session("queueing")
    await server.send("a1", session, server.effect("a1"), "wait busy", "say one two", server.effect("a1-2"), "say last")
    await server.gates.reached("busy")
    await server.send("a2", session, "say steered", server.effect("a2"), on_busy="steer")
    await server.send("a3", session, "say queued")
    await server.send("a4", session, "say dropped")
    await server.engine.store.drop_queued(server.workspace_id, session, "a4")
    acknowledge("drop", run_id="a4")
    await server.send("a5", session, "say cancelled early")
    await server.cancel_run("a5")
    await server.send("a6", session, "say promoted")
    await server.store.move_queued(server.workspace_id, session, "a6", "a3")
    acknowledge("moved", order=["a6", "a3"])
    await server.store.promote_queued(server.workspace_id, session, "a6", "steer")
    acknowledge("promoted", run_id="a6")
    await server.store.switch_mode(server.workspace_id, "a1", "plan")
    acknowledge("switched", run_id="a1", mode="plan")
    server.gates.open("busy")
    await server.end("a1", "a2", "a3", "a4", "a5", "a6")


async def asking(server: Server) -> None:
    session = await server.session("asking")
    await server.send("b1", session, "ask deploy done", "task build one two", "say thanks")
    granted = await server.asked("b1")
    await server.allow(granted, "allow_session")
    await server.send("b2", session, "question which colour", "say chosen")
    await server.end("b1")
    await server.answer(await server.asked("b2"))
    await server.end("b2")
    await server.store.revoke_grant(server.workspace_id, session, granted)
    await server.send("b3", session, "say first", "ask wipe gone", "say finished")
    await server.asked("b3")  # and nobody answers


async def cancelling(server: Server) -> None:
    session = await server.session("cancelling")
    await server.send("c1", session, server.long_process, "say never")
    await server.send("c2", session, "say never either")
    await server.has_process("c1")
    await server.cancel(session)
    await server.send("c3", session, "say after the cancel", "tool slow words and a hang")
    await server.end("c1", "c2")
    await server.seen("message_delta", "c3", text="hang ")
    await server.cancel_run("c3")
    await server.end("c3")


async def delegating(server: Server) -> None:
    session = await server.session("delegating")
    await server.send("d1", session, "delegate say sub / ask inner fine / say more", "say parent")
    await server.allow(await server.asked("d1"))
    await server.end("d1")
    await server.send("d2", session, "delegate wait forever-1", "say never")
    await server.gates.reached("forever-1")
    await server.cancel(session)
    await server.end("d2")


async def failing(server: Server) -> None:
    session = await server.session("failing")
    await server.send("e1", session, "use 7", "retry half an answer", "say whole answer", "limit 0.01", "fail broken")
    await server.end("e1")
    await server.send("e2", session, "say begun", "wait forever-2")
    await server.gates.reached("forever-2")
    await server.send("e3", session, "say interrupting", on_busy="interrupt")
    acknowledge("cancel", runs=["e2"])
    await server.end("e2", "e3")


async def tidying(server: Server) -> None:
    session = await server.session("tidying")
    await server.engine.change_session(server.workspace_id, session, SessionChange(title="renamed"))
    acknowledge("renamed", id=session, title="renamed")
    await server.engine.store.retitle_session(server.workspace_id, session, "renamed", "renamed")
    await server.store.append_config_changed(server.workspace_id)
    await server.send("f1", session, "wait forever-3")
    await server.gates.reached("forever-3")
    await server.engine.delete_session(server.workspace_id, session)
    acknowledge("deleted", id=session)
    other = await server.engine.open_workspace(server.root / "other")
    service = await asyncio.create_subprocess_exec("sleep", "60", start_new_session=True)
    recorded = await server.engine.host_of(other.id).record_process(service.pid)
    await recorded.end()
    await recorded.forget()
    await server.engine.delete_workspace(other.id)


async def rewinding(server: Server) -> None:
    session = await server.session("rewinding")
    await server.send("i1", session, "say kept")
    await server.send("i2", session, "say undone and done again")
    await server.end("i1", "i2")
    rewinder, place = server.engine.undos, (server.workspace_id, session)
    await rewinder.undo(*place)
    acknowledge("undone", id=session)
    await rewinder.redo(*place)
    acknowledge("redone", id=session)
    fork = await rewinder.fork(*place)
    acknowledge("session", id=fork.id, title=fork.title)


async def leaving(server: Server) -> None:
    """Work in every state, to be met by the stop."""
    for run_id, script in (("g1", server.long_process), ("h1", "wait forever-4"), ("j1", "stubborn 1")):
        session = await server.session(run_id)
        await server.send(run_id, session, "say before", script, "say after")
        if run_id == "h1":
            await server.send("h2", session, "say queued behind")
    await server.has_process("g1")
    await server.gates.reached("forever-4")
    await server.seen("message", "j1", role="assistant")
    await server.cancel_run("j1")


async def tell(root: Path) -> None:
    for name in ("workspace", "other", "effects", "processes"):
        (root / name).mkdir(exist_ok=True)
    (root / "processes" / "long").write_text(LONG_PROCESS)
    server = Server(root)
    await server.start()
    async with asyncio.TaskGroup() as acts:
        for act in (queueing, asking, cancelling, delegating, failing, tidying, rewinding):
            acts.create_task(act(server))
    await leaving(server)
    await server.stop()


async def resume(root: Path) -> None:
    server = Server(root)
    for gate in GATES:
        server.gates.open(gate)
    await server.start()
    for request in await server.store.pending_requests(server.workspace_id, "permission"):
        acknowledge("asked", id=request.id, run_id=request.run_id)
        await server.allow(request.id)
    open_runs = [run.run_id for run in await server.store.runs(server.workspace_id) if run.is_open]
    await server.end(*open_runs)
    await server.stop()


async def upgrade(root: Path) -> None:
    store = SqliteStore.open(root / "data", schema=[*database.load_migrations(), NEWER])
    acknowledge("upgraded")
    await store.close()


def main(mode: str, directory: str) -> None:
    passed: Counter[str] = Counter()
    if record := os.environ.get("KEDGE_RECORD"):
        failpoints.watch(lambda name: passed.update([name]))
    asyncio.run({"tell": tell, "resume": resume, "upgrade": upgrade}[mode](Path(directory)))
    if record:
        Path(record).write_text(json.dumps(passed))


if __name__ == "__main__":
    main(*sys.argv[1:])
