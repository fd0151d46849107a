"""`AsyncClient`, for asynchronous programs. Answers and events are structs of `kedge.protocol`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar

import msgspec

from kedge.client.async_transport import AsyncTransport
from kedge.client.environment import make_submission
from kedge.client.errors import Dropped, InDoubt, NotUnderstood
from kedge.client.events import EventCursor, EventFollower, follow_async
from kedge.client.reconnect import GIVE_UP_S, ReconnectPolicy
from kedge.client.run_follower import PAGE, RunTracker, messages_target
from kedge.client.run_output import AnswerText, LiveOutput
from kedge.client.sync_client import RECENT, Client
from kedge.http.http1 import build_query, escape
from kedge.protocol.api import Deleted, Offered, Queue, SessionGrant, SessionGrants
from kedge.protocol.environment import HEADER, encode_environment
from kedge.protocol.events import CONTROL_TYPES, PAYLOAD_TYPES, Envelope, Event, decode_envelope, to_event
from kedge.protocol.files import Restore, Rewound
from kedge.protocol.messages import Message
from kedge.protocol.runs import Mode, Receipt, Run, RunEnd
from kedge.protocol.sessions import Session, Workspace

if TYPE_CHECKING:
    from kedge.client.events import Decoded


T = TypeVar("T")


class AsyncClient:
    """A workspace on a server. Use it on one event loop, in as many tasks as you like."""

    def __init__(self, transport: AsyncTransport, workspace: Workspace, *, give_up_s: float = GIVE_UP_S) -> None:
        self.transport = transport
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
        """Open the workspace of `directory`. Without a host, uses the data directory's server, started if needed."""
        connecting = asyncio.to_thread(
            Client.connect,
            directory,
            host=host,
            data_dir=data_dir,
            token=token,
            token_file=token_file,
            name=name,
            give_up_s=give_up_s,
        )
        with await connecting as client:
            workspace = msgspec.convert(client.workspace, Workspace)
            return cls(AsyncTransport(client.transport.location, client=name), workspace, give_up_s=give_up_s)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections. Submitted runs continue (P4)."""
        await self.transport.close()

    async def call(self, method: str, path: str, body: object = None, *, type: type[T]) -> T:
        """Send a request below this workspace, like `call("GET", "/agent", type=AgentState)`, until it is answered."""
        return convert_answer(await self.transport.call(method, self.path + path, body, policy=self.new_policy()), type)

    async def call_once(self, method: str, path: str, body: object = None, *, type: type[T]) -> T:
        """As `call`, once, for a request that must not arrive twice, like an undo. Raises `InDoubt`."""
        try:
            return convert_answer(await self.transport.request(method, self.path + path, body), type)
        except Dropped as error:
            raise InDoubt(error) from error

    async def models(self, env: Mapping[str, str] | None = None) -> Offered:
        """List the models for a shell with the variables `env`, or for the server's own. Only names are sent."""
        headers = {} if env is None else {HEADER: encode_environment(env)}
        answer = await self.transport.call("GET", f"{self.path}/models", policy=self.new_policy(), headers=headers)
        return convert_answer(answer, Offered)

    def new_policy(self) -> ReconnectPolicy:
        return ReconnectPolicy(give_up_s=self._give_up_s)

    async def sessions(self, search: str | None = None, *, limit: int | None = None) -> list[Session]:
        """List sessions, the most recently used first."""
        target = f"/sessions{build_query(q=search, limit=limit)}"
        return (await self.call("GET", target, type=dict[str, list[Session]]))["sessions"]

    async def latest_session(self) -> Session | None:
        """The most recently used session that is not a sub-agent's."""
        for limit in (RECENT, None):
            for session in await self.sessions(limit=limit):
                if session.parent_session_id is None:
                    return session
        return None

    async def create_session(self, title: str = "") -> Session:
        return await self.call("POST", "/sessions", {"title": title}, type=Session)

    async def messages(self, session_id: str) -> list[Message]:
        """Read the messages of a session, oldest first."""
        target = f"{self.path}/sessions/{escape(session_id)}"
        return convert_answer(await _read_messages(self.transport, target, self.new_policy()), list[Message])

    async def submit(self, prompt: str, *, session_id: str, run_id: str | None = None, **options: Any) -> Receipt:
        """Submit a prompt; it is durable when this returns (P1). `options` are the fields of `POST W/agent`."""
        return await self.call("POST", "/agent", make_submission(prompt, session_id, run_id, options), type=Receipt)

    async def run(
        self, prompt: str, *, session_id: str | None = None, run_id: str | None = None, **options: Any
    ) -> AsyncFollowedRun:
        """Make a run, in a new session if none is given. It is submitted when its text or end is first asked for."""
        session_id = session_id or (await self.create_session()).id
        tracker = RunTracker(self.path, make_submission(prompt, session_id, run_id, options))
        return AsyncFollowedRun(self.transport, tracker, self.new_policy())

    async def events(
        self, *, after: int | None = None, log_id: str | None = None, session_id: str | None = None
    ) -> AsyncGenerator[Event]:
        """Yield the workspace's events without end: from now on, or all after a `seq`.

        After a `stream_reset` (P10) events are missing: read what you need again.
        """
        cursor = EventCursor(after=after, log_id=log_id, session_id=session_id, decode=decode_to_envelope)
        envelopes: list[Envelope] = []
        follower = EventFollower(self.path, cursor, lambda envelope, _: envelopes.append(envelope), self.new_policy())
        async with aclosing(follow_async(self.transport, follower)) as steps:
            async for _ in steps:
                for envelope in envelopes:
                    if envelope.type in _YIELDED_TYPES:
                        yield to_event(envelope)
                envelopes.clear()

    async def cancel(self, *, run_id: str | None = None, session_id: str | None = None) -> list[str]:
        """Cancel one run, or all that a session has accepted so far (P6); returns the ids of the canceled runs."""
        if run_id is not None:
            run = await self.call("POST", f"/runs/{escape(run_id)}/cancel", type=Run)
            return [run_id] if run.cancel_requested else []
        if session_id is None:
            raise ValueError("pass run_id or session_id")
        target = f"/agent/sessions/{escape(session_id)}/cancel"
        return (await self.call("POST", target, type=dict[str, list[str]]))["cancelled"]

    async def switch_mode(self, run_id: str, mode: Mode) -> Run:
        """Switch the mode of an open run and of all that share its turn, from the next call of a tool on."""
        return await self.call("POST", f"/runs/{escape(run_id)}/mode", {"mode": mode}, type=Run)

    async def queue(self, session_id: str) -> list[Run]:
        """List the queued prompts of a session; the first one starts next (P5)."""
        return (await self.call("GET", f"/agent/sessions/{escape(session_id)}/prompts/list", type=Queue)).prompts

    async def move(self, run_id: str, *, session_id: str, before: str | None = None) -> list[Run]:
        """Move a queued prompt in front of another one, or to the end; returns the queue."""
        target, body = f"/agent/sessions/{escape(session_id)}/prompts/move", {"run_id": run_id, "before": before}
        return (await self.call("POST", target, body, type=Queue)).prompts

    async def promote(self, run_id: str, *, session_id: str, on_busy: Literal["steer", "interrupt"] = "steer") -> Run:
        """Send a queued prompt into the running turn, or have it interrupt that turn. Raises `InDoubt`."""
        target, body = f"/agent/sessions/{escape(session_id)}/prompts/promote", {"run_id": run_id, "on_busy": on_busy}
        return await self.call_once("POST", target, body, type=Run)

    async def undo(
        self,
        session_id: str,
        message_id: str | None = None,
        *,
        restore: Restore = "both",
        include_unsure: bool = False,
        dry_run: bool = False,
    ) -> Rewound:
        """Restore files and conversation, or one of them, to before a message. Raises `InDoubt`."""
        body: dict[str, object] = {"restore": restore, "include_unsure": include_unsure, "dry_run": dry_run}
        body |= {} if message_id is None else {"message_id": message_id}
        return await self.call_once("POST", f"/sessions/{escape(session_id)}/undo", body, type=Rewound)

    async def redo(self, session_id: str, *, dry_run: bool = False) -> Rewound:
        """Revert the last undo of a session. Raises `InDoubt`."""
        target = f"/sessions/{escape(session_id)}/redo"
        return await self.call_once("POST", target, {"dry_run": dry_run}, type=Rewound)

    async def grants(self, session_id: str) -> list[SessionGrant]:
        """List what was allowed for the rest of a session."""
        return (await self.call("GET", f"/sessions/{escape(session_id)}/grants", type=SessionGrants)).grants

    async def revoke(self, grant_id: str, *, session_id: str) -> None:
        """Revoke what was allowed for a session, from its next run on. Raises `InDoubt`."""
        target = f"/sessions/{escape(session_id)}/grants/{escape(grant_id)}"
        await self.call_once("DELETE", target, type=Deleted)


def convert_answer(answer: object, type: type[T]) -> T:
    """Convert an answer to a struct. Raises `NotUnderstood` for one of a much newer server, or of another program."""
    try:
        return msgspec.convert(answer, type)
    except msgspec.ValidationError as error:
        raise NotUnderstood(
            f"The server's answer was not understood ({error}). Use a client and a server of the same version."
        ) from error


class AsyncFollowedRun:
    """Iterate to get the run's text as it is written; then `outcome` is the payload of its `run_complete`."""

    def __init__(self, transport: AsyncTransport, tracker: RunTracker, policy: ReconnectPolicy) -> None:
        self.run_id = tracker.view.run_id
        self.outcome: RunEnd | None = None
        self._transport = transport
        self._tracker = tracker
        self._policy = policy

    async def __aiter__(self) -> AsyncIterator[str]:
        view = self._tracker.view
        output, text = LiveOutput(view.messages), AnswerText()
        async with aclosing(self._steps()) as steps:
            async for _ in steps:
                for piece in text.take(output.new_pieces()):
                    yield piece
        assert view.end is not None
        for piece in text.take(output.finish(view.end)):
            yield piece
        self.outcome = msgspec.convert(view.end, RunEnd)

    async def wait(self) -> RunEnd:
        """Follow the run to its end and return `outcome`."""
        async for _ in self:
            pass
        assert self.outcome is not None
        return self.outcome

    async def _steps(self) -> AsyncGenerator[None]:
        """As `RunFollower.steps`."""
        tracker = self._tracker
        events = EventFollower(tracker.workspace_path, tracker.cursor, tracker.take, self._policy)
        async with aclosing(follow_async(self._transport, events)) as steps:
            async for _ in steps:
                if tracker.needs_submit:
                    tracker.accept(await self._call("POST", f"{tracker.workspace_path}/agent", tracker.submission))
                if tracker.needs_reload:
                    run = await self._call("GET", tracker.run_target)
                    messages = await _read_messages(self._transport, tracker.session_target, self._policy)
                    tracker.reload(run, messages)
                yield
                if tracker.view.end is not None:
                    return

    async def _call(self, method: str, target: str, body: object = None) -> Any:
        return await self._transport.call(method, target, body, policy=self._policy)


async def _read_messages(
    transport: AsyncTransport, session_target: str, policy: ReconnectPolicy
) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    while True:
        after = messages[-1]["id"] if messages else None
        page = (await transport.call("GET", messages_target(session_target, after), policy=policy))["messages"]
        messages += page
        if len(page) < PAGE:
            return messages


KNOWN_TYPES = CONTROL_TYPES.keys() | PAYLOAD_TYPES.keys()  # a newer server may send others: ignore them
_YIELDED_TYPES = KNOWN_TYPES - {"connected", "heartbeat"}


def decode_to_envelope(data: bytes) -> Decoded:
    """`EventCursor`'s decoder for an `Envelope`, which `to_event` makes an `Event` of. Raises ValueError."""
    try:
        envelope: Envelope = decode_envelope(data)
        is_control = envelope.type in CONTROL_TYPES
        payload = msgspec.json.decode(envelope.payload, type=dict[str, Any]) if is_control else {}
    except msgspec.DecodeError as error:
        raise ValueError(str(error)) from error
    return envelope.type, envelope.seq, payload, envelope
