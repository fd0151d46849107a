"""People who are asked by runs: they allow, refuse, race each other, answer twice, or leave it."""

from __future__ import annotations

import asyncio
from random import Random

from kedge.protocol.events import Event
from kedge.protocol.requests import PermissionRequest, QuestionRequest
from tests.soak.api import WorkspaceApi
from tests.soak.record import Reply

YES_AND_NO = {"permission": ("allow", "deny"), "question": ("answer", "cancel")}


class People:
    """They hear of requests from a reader that stays, also of those that a restarted server sends again."""

    def __init__(self, api: WorkspaceApi, rng: Random) -> None:
        self._api = api
        self._rng = rng
        self._seen: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.left = 0

    def saw(self, event: Event) -> None:
        match event.payload:
            case PermissionRequest(id=request_id):
                kind = "permission"
            case QuestionRequest(id=request_id):
                kind = "question"
            case _:
                return
        if request_id not in self._seen:
            self._seen.add(request_id)
            task = asyncio.ensure_future(self._decide(kind, request_id))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Whoever still thinks about it says nothing any more."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _decide(self, kind: str, request_id: str) -> None:
        yes, no = YES_AND_NO[kind]
        way = self._rng.choices(("yes", "for good", "no", "race", "twice", "leave"), (40, 5, 20, 15, 10, 10))[0]
        await asyncio.sleep(self._rng.choice((0, 0.1, 1)))
        match way:
            case "yes":
                await self._say(kind, request_id, yes, "a api")
            case "for good":
                await self._say(kind, request_id, "allow_session" if kind == "permission" else yes, "a api")
            case "no":
                await self._say(kind, request_id, no, "a phone")
            case "race":
                await asyncio.gather(
                    self._say(kind, request_id, yes, "a api"), self._say(kind, request_id, no, "a phone")
                )
            case "twice":
                await self._say(kind, request_id, yes, "a api")
                await self._say(kind, request_id, no, "a phone")
            case _:
                self.left += 1  # its run waits until somebody cancels it, or the soak ends

    async def _say(self, kind: str, request_id: str, action: str, client: str) -> Reply:
        while True:
            await self._api.server.up.wait()
            reply = await self._api.reply(kind, request_id, action, client)
            if reply.asked.status not in (None, 503):
                return reply
            await asyncio.sleep(0.1)
