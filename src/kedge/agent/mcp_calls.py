"""A call of an MCP server's tool: rounds of input from a person, tasks, and the result.

What a crash must not lose is stored with the call: the request for input with the server's state, or the task's id. The
next server goes on from there. A request that was in flight when the server died is never repeated (P13).
"""

from __future__ import annotations

import asyncio
import contextlib
import mimetypes
from collections.abc import Callable
from typing import Any, cast

import msgspec

from kedge import failpoints
from kedge.agent.mcp_input import answer_input
from kedge.files.states import compute_digest
from kedge.jsonrpc.errors import CannotConnect, Disconnected, Ended, PeerError, RpcError
from kedge.jsonrpc.messages import Json
from kedge.mcp.client import Client
from kedge.mcp.listing import OfferedTool
from kedge.mcp.messages import CallResult, InputRequest, TaskState
from kedge.mcp.results import Attachment, convert_result
from kedge.mcp.servers import McpServer
from kedge.protocol.text_safety import one_line
from kedge.tools.errors import ToolError
from kedge.tools.port import Output, ToolContext

MAX_ROUNDS = 10  # of input for one call
CONNECT_S = 30.0  # a call waits so long for its server
POLL_S = (0.1, 60.0)  # bounds of the pause between two looks at a task
DEFAULT_POLL_S = 2.0
MAX_RECONNECTS = 5  # while a task is watched
MAX_PROGRESS_CHARS = 300
RETRY_PAUSE_S = 1.0  # where a server wants the same call again without asking anything


class CallState(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What the next server needs to go on with a call."""

    round: int = 0
    requests: dict[str, InputRequest] = {}
    request_state: str | None = None
    task_id: str | None = None
    poll_interval_ms: int | float | None = None
    answered: list[str] = []  # keys of a task's requests: it may show them again


class _Watcher:
    """Implements `kedge.mcp.client.CallWatcher`."""

    def __init__(self, ctx: ToolContext, server: str) -> None:
        self.can_elicit = ctx.is_attended
        self._ctx = ctx
        self._server = server
        self._asked = 0

    def on_progress(self, text: str) -> None:
        self._ctx.write(f"{one_line(text, MAX_PROGRESS_CHARS)}\n")

    async def elicit(self, request: InputRequest) -> Json:
        self._asked += 1
        return await answer_input(self._server, f"call {self._asked}", request, self._ctx.ask)


class ToolCall:
    """One call, from its beginning or from where an earlier server stopped."""

    def __init__(self, ctx: ToolContext, tool: OfferedTool, server: McpServer, arguments: Json) -> None:
        self._ctx = ctx
        self._tool = tool
        self._server = server
        self._arguments = arguments
        self._watcher = _Watcher(ctx, server.name)

    async def run(self, cancel_later: Callable[[str], None]) -> Output:
        """Return the result, also for what went wrong. `cancel_later` gets the id of a task that was abandoned."""
        stored = await self._ctx.state()
        state = msgspec.json.decode(stored, type=CallState) if stored else None
        try:
            result = await self._run(state, cancel_later)
        except RpcError as error:
            text = f"The MCP server {self._server.name} refused the call: {error.text} (code {error.code})"
            return self._fail(_with_data(text, error))
        except Disconnected as error:
            return self._fail(
                f"The connection to the MCP server {self._server.name} ended during this call: {error.text}."
                " It may have had effects and was not repeated."
            )
        except PeerError as error:
            return self._fail(f"The MCP server {self._server.name}: {error.text}.")
        return await asyncio.to_thread(self._convert, result)

    async def _run(self, state: CallState | None, cancel_later: Callable[[str], None]) -> CallResult:
        again: Json | None = None
        if state is None:
            state = CallState()
        elif state.task_id is None:
            again = await self._answer_round(state)
        while True:
            if state.task_id is not None:
                return await self._follow_task(state, state.task_id, cancel_later)
            if again is not None:
                await self._connect()
                await self._ctx.keep_state(None)  # from here on the call may have effects
                failpoints.hit("mcp.again")
            result = await self._send(again)
            if result.result_type == "complete":
                return result
            state = await self._keep(state, result)
            if state.task_id is None:
                again = await self._answer_round(state)

    async def _send(self, again: Json | None) -> CallResult:
        for is_last in (False, True):
            await self._connect()
            with self._server.call() as client:
                try:
                    return await client.call_tool(self._tool.tool, self._arguments, self._watcher, again=again)
                except Ended:  # a moment ago: nothing was sent
                    if is_last:
                        raise
            await self._server.wait_for_end(client)
        raise AssertionError

    async def _keep(self, state: CallState, result: CallResult) -> CallState:
        if state.round >= MAX_ROUNDS:
            raise ToolError(f"The MCP server {self._server.name} asked for input {MAX_ROUNDS} times in one call.")
        state = CallState(
            round=state.round + 1,
            requests=result.input_requests,
            request_state=result.request_state,
            task_id=result.task_id if result.result_type == "task" else None,
            poll_interval_ms=result.poll_interval_ms,
        )
        if result.result_type == "task" and not state.task_id:
            raise ToolError(f"The MCP server {self._server.name} answered with a task that has no id.")
        await self._ctx.keep_state(msgspec.json.encode(state))
        failpoints.hit("mcp.kept")
        return state

    async def _answer_round(self, state: CallState) -> Json:
        """Return what is sent with the same call the next time."""
        responses = await self._answer(state.requests, f"round {state.round}")
        if not state.requests:
            await asyncio.sleep(RETRY_PAUSE_S * state.round)
        again: Json = {"inputResponses": responses} if state.requests else {}
        return again if state.request_state is None else {**again, "requestState": state.request_state}

    async def _answer(self, requests: dict[str, InputRequest], label: str) -> Json:
        ask = self._ctx.ask if self._ctx.is_attended else None
        return {
            key: await answer_input(self._server.name, f"{label}, {key}", request, ask)
            for key, request in requests.items()
        }

    async def _follow_task(self, state: CallState, task_id: str, cancel_later: Callable[[str], None]) -> CallResult:
        reconnects = 0
        shown = ""
        try:
            while True:
                try:
                    await self._connect()
                    with self._server.call() as client:
                        task = await client.get_task(task_id, can_elicit=self._ctx.is_attended)
                        await self._answer_task(client, state, task)
                except (Disconnected, CannotConnect):  # the task may outlive the connection
                    reconnects += 1
                    if reconnects > MAX_RECONNECTS:
                        raise
                    await asyncio.sleep(DEFAULT_POLL_S)
                    continue
                if (result := _read_end(task, self._server.name)) is not None:
                    return result
                if task.status_message and task.status_message != shown:
                    shown = task.status_message
                    self._watcher.on_progress(shown)
                await asyncio.sleep(_poll_pause_s(task.poll_interval_ms or state.poll_interval_ms))
        except asyncio.CancelledError:
            if not self._ctx.is_stopping:  # else the next server goes on
                cancel_later(task_id)
            raise

    async def _answer_task(self, client: Client, state: CallState, task: TaskState) -> None:
        if task.status != "input_required":
            return
        due = {key: request for key, request in task.input_requests.items() if key not in state.answered}
        if not due:
            return
        if len(state.answered) + len(due) > MAX_ROUNDS * 5:
            raise ToolError(f"A task of the MCP server {self._server.name} asked for input too often.")
        responses = await self._answer(due, "task")
        await client.update_task(task.task_id, responses)
        state.answered = [*state.answered, *due]
        await self._ctx.keep_state(msgspec.json.encode(state))

    async def _connect(self) -> None:
        await self._server.connect(CONNECT_S)

    def _convert(self, result: CallResult) -> Output:
        outcome = convert_result(result, sees_images=self._ctx.sees_images)
        parts = [self._save(part) if isinstance(part, Attachment) else part for part in outcome.parts]
        return Output(
            content="\n\n".join(parts), is_error=outcome.is_error, metadata=self._metadata, images=outcome.images
        )

    def _save(self, attachment: Attachment) -> str:
        """Save bytes that are no text in the session's scratch directory, and say where. Blocks."""
        kind = one_line(attachment.mime_type, 80)
        suffix = mimetypes.guess_extension(attachment.mime_type) or ".bin"
        path = self._ctx.scratch / f"mcp-{compute_digest(attachment.data)[:12]}{suffix}"
        with contextlib.suppress(OSError):
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            path.write_bytes(attachment.data)
            return f"[{kind}, {len(attachment.data):,} bytes, saved as {path}]"
        return f"[{kind}, {len(attachment.data):,} bytes, could not be saved]"

    def _fail(self, content: str) -> Output:
        return Output(content=self._server.redact(content), is_error=True, metadata=self._metadata)

    @property
    def _metadata(self) -> dict[str, Any]:
        return {"mcp_server": self._tool.server, "mcp_tool": self._tool.tool}


def _read_end(task: TaskState, server: str) -> CallResult | None:
    """Return the result of a task that has ended, None for one that has not."""
    match task.status:
        case "completed":
            return msgspec.json.decode(task.result, type=CallResult)
        case "failed":
            error = task.error
            text = (error.message if error else "") or task.status_message or "the task failed"
            raise RpcError(error.code if error else 0, text)
        case "cancelled":
            raise ToolError(f"The MCP server {server} canceled the task of this call.")
        case _:
            return None


def _poll_pause_s(interval_ms: float | None) -> float:
    return DEFAULT_POLL_S if interval_ms is None else min(max(interval_ms / 1000, POLL_S[0]), POLL_S[1])


def _with_data(text: str, error: RpcError) -> str:
    """Add the addresses that a legacy server wants a person to open (URL elicitation by an error)."""
    match error.data:
        case {"elicitations": [*requests]}:
            urls = [cast("Json", each).get("url") for each in requests if isinstance(each, dict)]
            return "\n".join([text, *(f"Ask the user to open: {url}" for url in urls if url)])
        case _:
            return text
