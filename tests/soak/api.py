"""What clients ask of one workspace, each request with its answer put on record."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import msgspec

from kedge.protocol.events import Event, encode
from kedge.protocol.messages import Message
from kedge.protocol.runs import Run, RunEnd, RunState
from tests.soak.http import Answer
from tests.soak.plans import Deed
from tests.soak.record import Body, Cancel, Page, Record, Reply, Sent, Work, digest_of
from tests.soak.server import SoakServer
from tests.support.invariants import is_finished


class WorkspaceApi:
    def __init__(self, server: SoakServer, record: Record) -> None:
        self.server = server
        self.record = record
        self.path = f"/v1/workspaces/{record.workspace_id}"
        self.states: dict[str, RunState] = {}  # of every run, as the newest event told
        self.gates: list[str] = []  # where runs may wait; opened at the end, all of them
        self._ids = itertools.count(1)
        self._news = asyncio.Event()

    def saw(self, event: Event) -> None:
        """Told by a reader that stays."""
        match event.payload:
            case Run() as run:
                self.states[run.run_id] = run.state
            case RunEnd() as end:
                self.record.ends_seen.setdefault(end.run_id, asyncio.get_running_loop().time())
            case _:
                return
        self._news.set()
        self._news = asyncio.Event()

    def has_ended(self, run_id: str) -> bool:
        return self.states.get(run_id, "queued") not in ("queued", "running")

    async def ended(self, run_id: str, limit_s: float) -> bool:
        """Whether it has, after that long."""
        try:
            async with asyncio.timeout(limit_s):
                while not self.has_ended(run_id):
                    await self._news.wait()
        except TimeoutError:
            return False
        return True

    async def known(self, run_id: str, limit_s: float) -> bool:
        try:
            async with asyncio.timeout(limit_s):
                while run_id not in self.states:
                    await self._news.wait()
        except TimeoutError:
            return False
        return True

    def new_run_id(self, deed: Deed) -> str:
        run_id = f"{self.record.name}-r{next(self._ids)}"
        self.expect(run_id, deed)
        return run_id

    def expect(self, run_id: str, deed: Deed) -> None:
        self.record.works[run_id] = Work(run_id, deed.ending, deed.answer, deed.mark, deed.process)
        if deed.gate:
            self.gates.append(deed.gate)

    # prompts

    async def send(self, run_id: str, body: Body) -> Sent:
        """One try; whoever is not answered asks again."""
        match body.kind:
            case "shell":
                target = f"{self.path}/agent/sessions/{body.session_id}/shell"
                fields: dict[str, Any] = {"command": body.prompt, "on_busy": body.on_busy}
            case "summarize":
                target = f"{self.path}/agent/sessions/{body.session_id}/summarize"
                fields = {"on_busy": body.on_busy, "model": body.model}
            case _:
                target = f"{self.path}/agent"
                fields = {"session_id": body.session_id, "prompt": body.prompt, "on_busy": body.on_busy}
                fields |= {"permissions": body.permissions, "model": body.model}
        answer = await self._ask("POST", target, {**fields, "run_id": run_id})
        sent = Sent(run_id, body, answer.asked)
        if answer.status == 202:
            told = answer.body
            sent = Sent(
                *(run_id, body, answer.asked),
                seq=told["seq"],
                state=told["state"],
                replayed=told["replayed"],
                told=told["run_id"],
            )
        self.record.sent.append(sent)
        return sent

    async def send_until_answered(self, run_id: str, body: Body) -> Sent:
        while True:
            await self.server.up.wait()
            sent = await self.send(run_id, body)
            if sent.asked.status not in (None, 503):
                return sent
            await asyncio.sleep(0.1)

    # cancels

    async def cancel_session(self, session_id: str) -> Answer:
        answer = await self._ask("POST", f"{self.path}/agent/sessions/{session_id}/cancel")
        self._cancelled("session", session_id, answer)
        return answer

    async def cancel_run(self, run_id: str) -> Answer:
        answer = await self._ask("POST", f"{self.path}/runs/{quote(run_id)}/cancel")
        told: dict[str, Any] = answer.body if answer.status == 200 else {}
        self.record.cancels.append(
            Cancel("run", run_id, answer.asked, (), told.get("state"), told.get("cancel_requested", False))
        )
        return answer

    async def clear_queue(self, session_id: str) -> None:
        answer = await self._ask("POST", f"{self.path}/agent/sessions/{session_id}/prompts/clear")
        self._cancelled("queue", session_id, answer)

    async def delete_session(self, session_id: str) -> bool:
        """Until it is gone."""
        while True:
            await self.server.up.wait()
            answer = await self._ask("DELETE", f"{self.path}/sessions/{session_id}")
            self.record.cancels.append(Cancel("delete", session_id, answer.asked))
            if answer.status in (200, 404):
                return True
            await asyncio.sleep(0.1)

    def _cancelled(self, scope: Any, session_id: str, answer: Answer) -> None:
        told = tuple(answer.body["cancelled"]) if answer.status == 200 else ()
        self.record.cancels.append(Cancel(scope, session_id, answer.asked, told))

    # people

    async def reply(self, kind: str, request_id: str, action: str, client: str) -> Reply:
        if kind == "permission":
            target, body = "permissions/grant", {"id": request_id, "action": action}
        elif action == "answer":
            target, body = "questions/answer", {"id": request_id, "answers": ["net"]}
        else:
            target, body = "questions/cancel", {"id": request_id}
        answer = await self._ask("POST", f"{self.path}/{target}", body, {"Kedge-Client": client})
        reply = Reply(request_id, client, action, answer.asked)
        if answer.status == 200:
            told = answer.body
            reply = Reply(request_id, client, action, answer.asked, told["resolved"], told["by"], told["action"])
        self.record.replies.append(reply)
        return reply

    # everything else

    async def new_session(self, title: str) -> str:
        while True:
            await self.server.up.wait()
            answer = await self.other("create session", "POST", f"{self.path}/sessions", {"title": title})
            if answer.status == 200:
                return answer.body["id"]
            await asyncio.sleep(0.1)

    async def page(self, session_id: str) -> Page | None:
        """All messages of a session as they are told at one moment (there are never more than a page of them)."""
        answer = await self.other("messages", "GET", f"{self.path}/sessions/{session_id}/messages?limit=1000")
        if answer.status != 200:
            return None
        messages = msgspec.convert(answer.body["messages"], list[Message])
        finished = tuple((each.id, digest_of(encode(each))) for each in messages if is_finished(each))
        return Page(session_id, answer.body["as_of_seq"], finished, tuple(each.id for each in messages))

    async def other(self, name: str, method: str, target: str, body: object = None) -> Answer:
        answer = await self._ask(method, target, body)
        self.record.other[name, answer.status] += 1
        return answer

    async def _ask(
        self, method: str, target: str, body: object = None, headers: Mapping[str, str] | None = None
    ) -> Answer:
        answer = await self.server.wire.ask(method, target, body, headers)
        if answer.status == 503:
            self.record.refused.append(answer.asked)
        return answer
