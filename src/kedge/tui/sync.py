"""`Sync`: keeps the workspace's state up to date, and reconnects for as long as the interface runs (P9)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Literal

from kedge.client.errors import ClientError, Refused, SpawnRefused
from kedge.client.events import EventCursor, EventFollower, follow_async
from kedge.client.reconnect import ReconnectPolicy
from kedge.http.http1 import build_query, escape
from kedge.tui.state.workspace import WorkspaceState

if TYPE_CHECKING:
    from kedge.client import AsyncClient
    from kedge.client.events import Decoded
    from kedge.protocol.events import Envelope
    from kedge.tui.state.session import SessionState

    Read = Callable[[AsyncClient, WorkspaceState, str], Awaitable[None]]

SyncState = Literal["connecting", "live", "lost", "refused"]
FOREVER_S = 10 * 365 * 86_400.0  # an open interface never gives up; the banner shows that it retries


class Sync:
    """Follows events and reads stored state. `on_change` is called when there may be something new to draw."""

    def __init__(
        self, workspace: WorkspaceState, connect: Callable[[], Awaitable[AsyncClient]], on_change: Callable[[], None]
    ) -> None:
        self.workspace = workspace
        self.state: SyncState = "connecting"
        self.error = ""
        self.is_read = False  # whether sessions and open sessions have been read
        self.client: AsyncClient | None = None
        self._connect = connect
        self._on_change = on_change
        self._cursor = EventCursor(decode=_decode)  # survives refused connections
        self._open: list[str] = []  # open sessions, read again after missed events
        self._reading: asyncio.Task[None] | None = None
        self._ready = asyncio.Event()
        self._retry = asyncio.Event()

    async def ready(self) -> AsyncClient:
        """Return the client, as soon as there is a server."""
        await self._ready.wait()
        assert self.client is not None
        return self.client

    def retry(self) -> None:
        """End the current pause before reconnecting."""
        self._retry.set()

    async def run(self) -> None:
        """Run until canceled. Raises `SpawnRefused` if the first server cannot be started."""
        policy = ReconnectPolicy(give_up_s=FOREVER_S)
        is_first = True
        try:
            while True:
                try:
                    if self.client is None:
                        self.client = await self._connect()
                    is_first = False
                    self._ready.set()
                    await self._follow(self.client, policy)
                except ClientError as error:
                    if is_first and isinstance(error, SpawnRefused):
                        raise
                    await self._on_refused(error, policy)
        finally:
            await self._stop_reading()
            if self.client is not None:
                await self.client.close()

    async def open_session(self, session_id: str) -> None:
        """Read a session and keep it up to date, instead of the one that was open."""
        client = await self.ready()
        was_open = session_id in self._open
        self._open = [*self._open, session_id]  # the shown one stays until the new one is read
        try:
            await read_session(client, self.workspace, session_id)
        except ClientError:
            if not was_open:
                self._open = [each for each in self._open if each != session_id]
                self.workspace.close(self._open)
            raise
        self._open = [session_id]
        self.workspace.close(self._open)
        self._on_change()

    async def read(self, read: Read, session_id: str) -> None:
        """Read something about a session: `read_session`, `read_surroundings`, `read_usage` or `read_files`."""
        await read(await self.ready(), self.workspace, session_id)
        self._on_change()

    async def _follow(self, client: AsyncClient, policy: ReconnectPolicy) -> None:
        follower = EventFollower(client.path, self._cursor, lambda envelope, _: self._take(client, envelope), policy)
        async with contextlib.aclosing(follow_async(client.transport, follower, self._on_lost)) as steps:
            async for _ in steps:
                self._on_change()

    def _take(self, client: AsyncClient, envelope: Envelope) -> None:
        import msgspec

        from kedge.client.async_client import KNOWN_TYPES
        from kedge.protocol.events import to_event

        match envelope.type:
            case "connected":
                self.state, self.error = "live", ""
                if not self.is_read:
                    self._read_all(client)
            case "stream_reset":
                self._reset(client)
            case name if name in KNOWN_TYPES:
                try:
                    event = to_event(envelope)
                except msgspec.ValidationError:  # of a newer server: read the state instead
                    self._reset(client)
                else:
                    self.workspace.take(event)
            case _:
                pass

    async def _on_lost(self, policy: ReconnectPolicy, error: Exception) -> None:
        self.state, self.error = "lost", str(error)
        self._on_change()
        await self._pause(policy)

    async def _on_refused(self, error: ClientError, policy: ReconnectPolicy) -> None:
        """Show the error in the banner and retry: the user may fix it meanwhile."""
        is_gone = isinstance(error, Refused) and error.status == 404
        if is_gone and self.client is not None:  # the data directory was emptied: join again
            client, self.client = self.client, None
            self._ready.clear()
            self._cursor = EventCursor(decode=_decode)
            self.is_read = False
            await self._stop_reading()
            await client.close()
            self.workspace.forget()
        self.state, self.error = "refused", str(error)
        self._on_change()
        await self._pause(policy)

    async def _pause(self, policy: ReconnectPolicy) -> None:
        self._retry.clear()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._retry.wait(), policy.next_delay_s())

    def _reset(self, client: AsyncClient) -> None:
        """Forget everything and read again, because events were missed."""
        self.workspace.forget()
        self._read_all(client)

    def _read_all(self, client: AsyncClient) -> None:
        """Read the state in a task while events keep arriving; those are newer."""
        if self._reading is not None:
            self._reading.cancel()
        self.workspace.begin_reading()
        self.is_read = False
        self._reading = asyncio.create_task(self._read_until_done(client))

    async def _read_until_done(self, client: AsyncClient) -> None:
        policy = ReconnectPolicy(give_up_s=FOREVER_S)
        while True:
            try:
                await self._read(client)
                return
            except ClientError:
                await self._pause(policy)

    async def _read(self, client: AsyncClient) -> None:
        await read_workspace(client, self.workspace)
        opened = list(self._open)
        for session_id in opened:
            with contextlib.suppress(Refused):  # deleted meanwhile
                await read_session(client, self.workspace, session_id)
        self.workspace.end_reading()
        self.is_read = True
        self._on_change()
        for session_id in opened:
            with contextlib.suppress(Refused):
                await self.read(read_surroundings, session_id)

    async def _stop_reading(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait({self._reading})


def _decode(data: bytes) -> Decoded:
    from kedge.client.async_client import decode_to_envelope

    return decode_to_envelope(data)


PAGE = 1000  # most messages, runs or sessions of one answer
MAX_AGENTS = 100  # newest sub-agents of a session; each takes three requests


async def read_workspace(client: AsyncClient, workspace: WorkspaceState) -> None:
    """Read the sessions and the open runs."""
    from kedge.protocol import api

    for state in ("running", "queued"):
        workspace.read_runs((await client.call("GET", f"/runs{build_query(state=state)}", type=api.Runs)).runs)
    workspace.read_sessions(
        (await client.call("GET", f"/sessions{build_query(limit=PAGE)}", type=api.Sessions)).sessions
    )


async def read_session(client: AsyncClient, workspace: WorkspaceState, session_id: str) -> None:
    """Read a session's messages and runs."""
    session: SessionState | None = None
    while session is None or workspace.open_sessions.get(session_id) is not session:  # closed meanwhile
        session = workspace.open_session(session_id)
        await _fill(client, session)


async def read_surroundings(client: AsyncClient, workspace: WorkspaceState, session_id: str) -> None:
    """Read what a session can be shown without: its changed files and its sub-agents' sessions."""
    await read_files(client, workspace, session_id)
    waiting, left = [session_id], MAX_AGENTS
    while waiting and left > 0:
        for child in workspace.children_of(waiting.pop(0))[-left:]:
            left -= 1
            waiting.append(child)
            if not workspace.open_session(child).is_read:
                with contextlib.suppress(Refused):  # deleted meanwhile
                    await read_session(client, workspace, child)


async def read_usage(client: AsyncClient, workspace: WorkspaceState, session_id: str) -> None:
    """Read what a session has used so far, after a step: the server counts, so that all clients show the same."""
    from kedge.protocol.sessions import SessionDetails

    details = await client.call("GET", f"/sessions/{escape(session_id)}", type=SessionDetails)
    if session := workspace.open_sessions.get(session_id):
        session.usage = details.usage


async def read_files(client: AsyncClient, workspace: WorkspaceState, session_id: str) -> None:
    from kedge.protocol.files import SessionFiles

    session = workspace.open_sessions.get(session_id)
    if session is None:
        return
    before = dict(session.files)
    found = await client.call("GET", f"/sessions/{escape(session_id)}/files", type=SessionFiles)
    newer = {path: file for path, file in session.files.items() if file is not before.get(path)}
    session.files = {file.path: file for file in found.files} | newer


async def _fill(client: AsyncClient, session: SessionState) -> None:
    from kedge.protocol import api
    from kedge.protocol.messages import Message
    from kedge.protocol.sessions import SessionDetails

    path = f"/sessions/{escape(session.session_id)}"
    runs = await client.call("GET", f"/runs{build_query(session_id=session.session_id, limit=PAGE)}", type=api.Runs)
    messages: list[Message] = []
    as_of: int | None = None
    after: str | None = None
    while True:
        answer = await client.call("GET", f"{path}/messages{build_query(after=after, limit=PAGE)}", type=api.Messages)
        as_of = answer.as_of_seq if as_of is None else as_of
        messages += answer.messages
        if len(answer.messages) < PAGE:
            break
        after = answer.messages[-1].id
    session.read_runs(runs.runs)
    session.read(messages, as_of)
    session.usage = (await client.call("GET", path, type=SessionDetails)).usage
