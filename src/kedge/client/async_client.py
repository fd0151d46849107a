"""`AsyncClient`: the public face for asynchronous programs. Answers and events are structs of `kedge.protocol`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

import msgspec

from kedge.client.async_transport import AsyncWire
from kedge.client.errors import Dropped, InDoubt, NotUnderstood
from kedge.client.event_cursor import Story
from kedge.client.http1 import escape, query
from kedge.client.reconnect import GIVE_UP_S, Reconnect
from kedge.client.run_output import LiveTeller, Speech
from kedge.client.run_view import PAGE, RunCore
from kedge.client.submission import submission
from kedge.client.sync_client import LATEST, Client
from kedge.protocol.api import Messages
from kedge.protocol.environment import HEADER, header_of
from kedge.protocol.events import CONTROL_TYPES, PAYLOAD_TYPES, Event, decode_event
from kedge.protocol.messages import Message
from kedge.protocol.models import Offered
from kedge.protocol.runs import Receipt, Run, RunEnd
from kedge.protocol.sessions import Session, Workspace

if TYPE_CHECKING:
    from kedge.client.event_cursor import Event as RawEvent

T = TypeVar("T")


class AsyncClient:
    """A workspace on a server. Use it on one event loop, in as many tasks as you like."""

    def __init__(self, wire: AsyncWire, workspace: Workspace, *, give_up_s: float = GIVE_UP_S) -> None:
        self.wire = wire
        self.workspace = workspace
        self.path = f"/v1/workspaces/{workspace.id}"
        self._give_up_s = give_up_s

    @classmethod
    async def connect(
        cls,
        directory: str = ".",
        *,
        host: str | None = None,
        data_dir: str | None = None,
        token: str | None = None,
        token_file: str | None = None,
        name: str = "python",
        give_up_s: float = GIVE_UP_S,
    ) -> Self:
        """Join the workspace of `directory`. Without a host the data directory's server is found, or started."""

        def join() -> Client:
            return Client.connect(
                directory,
                host=host,
                data_dir=data_dir,
                token=token,
                token_file=token_file,
                name=name,
                give_up_s=give_up_s,
            )

        with await asyncio.to_thread(join) as client:
            workspace = msgspec.convert(client.workspace, Workspace)
            return cls(AsyncWire(client.wire.endpoint, client=name), workspace, give_up_s=give_up_s)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Leave. What was submitted goes on (P4)."""
        await self.wire.close()

    async def call(self, method: str, path: str, body: object = None, *, type: type[T]) -> T:
        """A request below this workspace, like `call("GET", "/agent", type=AgentState)`."""
        return understood(await self.wire.call(method, self.path + path, body, policy=self.policy()), type)

    async def call_once(self, method: str, path: str, body: object = None, *, type: type[T]) -> T:
        """As `call`, for what must not arrive twice, like an undo. Raises `InDoubt`."""
        try:
            return understood(await self.wire.request(method, self.path + path, body), type)
        except Dropped as error:
            raise InDoubt(error) from error

    async def models(self, env: Mapping[str, str] | None = None) -> Offered:
        """Which models there are for a shell with these variables, or for the server's own; keys do not leave it."""
        headers = {} if env is None else {HEADER: header_of(env)}
        answer = await self.wire.call("GET", f"{self.path}/models", policy=self.policy(), headers=headers)
        return understood(answer, Offered)

    def policy(self) -> Reconnect:
        return Reconnect(give_up_s=self._give_up_s)

    async def sessions(self, search: str | None = None, *, limit: int | None = None) -> list[Session]:
        """Newest activity first."""
        target = f"/sessions{query(q=search, limit=limit)}"
        return (await self.call("GET", target, type=dict[str, list[Session]]))["sessions"]

    async def latest_session(self) -> Session | None:
        """The one that was used last, and is not a sub-agent's."""
        for limit in (LATEST, None):
            for session in await self.sessions(limit=limit):
                if session.parent_session_id is None:
                    return session
        return None

    async def create_session(self, title: str = "") -> Session:
        return await self.call("POST", "/sessions", {"title": title}, type=Session)

    async def messages(self, session_id: str) -> list[Message]:
        """Of a session, oldest first."""
        found: list[Message] = []
        while True:
            after = found[-1].id if found else None
            target = f"/sessions/{escape(session_id)}/messages{query(after=after, limit=PAGE)}"
            page = (await self.call("GET", target, type=Messages)).messages
            found += page
            if len(page) < PAGE:
                return found

    async def submit(self, prompt: str, *, session_id: str, run_id: str | None = None, **options: Any) -> Receipt:
        """Hand in a prompt; when this returns, it is durable (P1). `options` are the fields of `POST W/agent`."""
        return await self.call("POST", "/agent", submission(prompt, session_id, run_id, options), type=Receipt)

    async def run(
        self, prompt: str, *, session_id: str | None = None, run_id: str | None = None, **options: Any
    ) -> AsyncRunning:
        """A prompt, in a new session if none is named. It is sent when its text or its end is first asked for."""
        session_id = session_id or (await self.create_session()).id
        core = RunCore(self.path, submission(prompt, session_id, run_id, options))
        return AsyncRunning(self.wire, core, self.policy())

    async def events(
        self, *, after: int | None = None, log_id: str | None = None, session_id: str | None = None
    ) -> AsyncGenerator[Event]:
        """The workspace's story without end: from now on, or everything after a `seq`.

        After a `stream_reset` (P10) something is missing: read what matters again.
        """
        story = Story(after=after, log_id=log_id, session_id=session_id, decode=_decode)
        heard: list[bytes] = []

        def take(event: RawEvent, data: bytes) -> None:
            if event["type"] in _TOLD:  # a newer server may know more
                heard.append(data)

        async with aclosing(self.wire.follow(self.path, story, take, self.policy())) as follow:
            async for _ in follow:
                for data in heard:
                    yield decode_event(data)
                heard.clear()

    async def cancel(self, *, run_id: str | None = None, session_id: str | None = None) -> list[str]:
        """Cancel one run, or all that a session has accepted so far (P6); returns what was hit."""
        if run_id is not None:
            run = await self.call("POST", f"/runs/{escape(run_id)}/cancel", type=Run)
            return [run_id] if run.cancel_requested else []
        if session_id is None:
            raise ValueError("say what to cancel: run_id or session_id")
        target = f"/agent/sessions/{escape(session_id)}/cancel"
        return (await self.call("POST", target, type=dict[str, list[str]]))["cancelled"]


def understood(answer: object, type: type[T]) -> T:
    """An answer as a struct. One of a much newer server, or of no server of ours, is an error like others."""
    try:
        return msgspec.convert(answer, type)
    except msgspec.ValidationError as error:
        what = f"the server's answer was not understood ({error}); use a client and a server of the same version"
        raise NotUnderstood(what) from error


class AsyncRunning:
    """A run being followed: iterating gives its text as it is written; then `outcome` is the end (`run_complete`)."""

    def __init__(self, wire: AsyncWire, core: RunCore, policy: Reconnect) -> None:
        self.run_id = core.view.run_id
        self.outcome: RunEnd | None = None
        self._wire = wire
        self._core = core
        self._policy = policy

    async def __aiter__(self) -> AsyncIterator[str]:
        view = self._core.view
        teller, speech = LiveTeller(view.messages), Speech()
        async with aclosing(self._steps()) as steps:
            async for _ in steps:
                for text in speech.of(teller.news()):
                    yield text
        assert view.end is not None
        for text in speech.of(teller.finish(view.end)):
            yield text
        self.outcome = msgspec.convert(view.end, RunEnd)

    async def wait(self) -> RunEnd:
        """The end, when it has come."""
        async for _ in self:
            pass
        assert self.outcome is not None
        return self.outcome

    async def _steps(self) -> AsyncGenerator[None]:
        core = self._core
        async with aclosing(self._wire.follow(core.workspace, core.story, core.take, self._policy)) as follow:
            async for _ in follow:
                if core.wants_to_submit:
                    target = f"{core.workspace}/agent"
                    core.accepted(await self._wire.call("POST", target, core.submission, policy=self._policy))
                if core.wants_to_reread:
                    await self._reread()
                yield
                if core.view.end is not None:
                    return

    async def _reread(self) -> None:
        # The run first: of one that has ended, the messages are whole.
        run = await self._wire.call("GET", self._core.run_target, policy=self._policy)
        messages: list[dict[str, Any]] = []
        after: str | None = None
        while True:
            page = (await self._wire.call("GET", self._core.messages_target(after), policy=self._policy))["messages"]
            messages += page
            if len(page) < PAGE:
                break
            after = page[-1]["id"]
        self._core.reread(run, messages)


_TOLD = (CONTROL_TYPES.keys() | PAYLOAD_TYPES.keys()) - {"connected", "heartbeat"}


def _decode(data: bytes) -> Any:
    try:
        return msgspec.json.decode(data)
    except msgspec.DecodeError as error:
        raise ValueError(str(error)) from error
