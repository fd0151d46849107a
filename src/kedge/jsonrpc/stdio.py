"""JSON-RPC over the standard streams of a process.

The process waits until it is recorded, so that the next server can end it if this one dies at any point. It gets its
own process group, and is ended with everything it started: some servers and their launchers leave grandchildren.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import msgspec

from kedge import failpoints
from kedge.files.environment import find_program
from kedge.jsonrpc.errors import CannotConnect, Disconnected, Ended, InvalidAnswer, PeerError
from kedge.jsonrpc.messages import Failure, Listener, Message, Notification, Request, RequestId, Result, decode, encode
from kedge.protocol.text_safety import one_line

log = logging.getLogger(__name__)

MARK = "KEDGE_PROCESS"
_SH = "/bin/sh"
# The first line of its input is the mark of its recorded group; if this server dies before, there is none.
_GATE = f'IFS= read -r {MARK} || exit 125; export {MARK}; exec "$@"'
MAX_MESSAGE_BYTES = 64 * 1024 * 1024  # of one message of the server
MAX_UNSENT_BYTES = 64 * 1024 * 1024  # for a server that does not read
MAX_STDERR_BYTES = 8 * 1024
MAX_SKIPPED_CHARS = 200
# Messages that nobody asked for, in so many seconds: more is a server that runs wild.
MAX_UNASKED = 20_000
UNASKED_S = 10.0
EXIT_S = 2.0  # after its input was closed


class RecordedProcess(Protocol):
    """A process group on record, which the next server ends if this one does not."""

    @property
    def mark(self) -> str: ...
    async def memory_bytes(self) -> int: ...  # of all its processes together
    async def end(self) -> list[str]: ...  # SIGTERM, then SIGKILL; returns the survivors
    async def forget(self) -> None: ...


RecordProcess = Callable[[int], Awaitable[RecordedProcess]]


class Command(NamedTuple):
    argv: Sequence[str]
    env: Mapping[str, str]
    cwd: Path
    workspace: Path  # no program is taken from there unless its path is given


class Framing(Protocol):
    """How messages stand in a stream of bytes."""

    @property
    def unread_bytes(self) -> int: ...  # of a message that is not complete
    def feed(self, data: bytes) -> Iterator[bytes]: ...  # the messages that are complete now
    def wrap(self, message: bytes) -> bytes: ...


class StdioConnection(asyncio.SubprocessProtocol):
    """A server as a process. Subclasses choose the framing and say how a request is canceled."""

    never_canceled: frozenset[str] = frozenset({"initialize"})  # methods

    def __init__(self, command: Command, record_process: RecordProcess, framing: Framing) -> None:
        self.skipped_messages = 0
        self.pid: int | None = None
        self.process: RecordedProcess | None = None
        self._command = command
        self._record_process = record_process
        self._listener: Listener | None = None
        self._child: asyncio.SubprocessTransport | None = None
        self._input: asyncio.WriteTransport | None = None
        self._waiting: dict[RequestId, asyncio.Future[msgspec.Raw]] = {}
        self._framing = framing
        self._stderr: deque[bytes] = deque()
        self._stderr_bytes = 0
        self._exited = asyncio.Event()
        self._ending: asyncio.Task[None] | None = None
        self._closed: PeerError | None = None
        self._unasked = 0
        self._unasked_since = 0.0

    @property
    def stderr_tail(self) -> str:
        """The end of what the server wrote to its standard error. It is no sign of a failure."""
        return b"".join(self._stderr)[-MAX_STDERR_BYTES:].decode("utf-8", "replace")

    async def open(self, listener: Listener) -> None:
        self._listener = listener
        argv = [await asyncio.to_thread(self._find_program), *self._command.argv[1:]]
        try:
            child, _ = await asyncio.get_running_loop().subprocess_exec(
                lambda: self,
                *(_SH, "-c", _GATE, _SH, *argv),
                cwd=self._command.cwd,
                env={**self._command.env, MARK: "waiting"},
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            raise CannotConnect(f"cannot start in {self._command.cwd} ({error})") from error
        pid = child.get_pid()
        failpoints.hit("jsonrpc.spawned")
        self.process = await self._record_process(pid)
        self.pid = pid
        failpoints.hit("jsonrpc.recorded")
        assert self._input is not None
        self._input.write(f"{self.process.mark}\n".encode())
        failpoints.hit("jsonrpc.released")

    async def request(self, request: Request) -> msgspec.Raw:
        future: asyncio.Future[msgspec.Raw] = asyncio.get_running_loop().create_future()
        self._waiting[request.id] = future
        try:
            self._write(request)
            failpoints.hit("jsonrpc.sent", request.method)
            result = await future
            failpoints.hit("jsonrpc.answered", request.method)
            return result
        except asyncio.CancelledError:
            if request.method not in self.never_canceled and self._closed is None:
                with contextlib.suppress(PeerError):
                    self._write(self.cancel_notification(request))
            raise
        finally:
            self._waiting.pop(request.id, None)

    async def notify(self, notification: Notification) -> None:
        self._write(notification)

    async def respond(self, response: Result | Failure) -> None:
        self._write(response)

    def cancel_notification(self, request: Request) -> Notification:
        """Return what tells the server that nobody waits for the answer to a request any more."""
        raise NotImplementedError

    async def close(self) -> None:
        """Close the input, wait a moment, then end everything that is left of the process group."""
        self._fail(Disconnected("the connection was closed"), is_own=True)
        if self._child is None:
            return
        if self._input is not None:
            self._input.close()
        if self._ending is None:
            self._ending = asyncio.create_task(self._end(None))
        await asyncio.shield(self._ending)

    async def _wait_for_exit(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(EXIT_S):
                await self._exited.wait()

    async def _end_group(self) -> None:
        assert self._child is not None
        try:
            if self.process is None:  # it waits for its mark
                with contextlib.suppress(ProcessLookupError):
                    self._child.kill()
            elif survivors := await self.process.end():
                log.warning("processes of a server cannot be ended: %s", ", ".join(survivors))
            else:
                await self.process.forget()
        finally:
            self._child.close()

    def _find_program(self) -> str:
        program, command = self._command.argv[0], self._command
        if "/" in program:
            return os.path.expanduser(program)  # noqa: PTH111 - a relative path must stay one
        found = find_program(program, command.env, command.workspace)
        if found is None:
            raise CannotConnect(f"there is no program {one_line(program, 60)} on the PATH of Kedge's server")
        return found

    def _write(self, message: Message) -> None:
        if self._closed is not None:
            raise Ended(self._closed.text) from self._closed
        assert self._input is not None
        if self._input.is_closing():
            raise Ended("the server has ended")
        if self._input.get_write_buffer_size() > MAX_UNSENT_BYTES:
            raise CannotConnect("the server does not read its input")
        self._input.write(self._framing.wrap(encode(message)))
        if self._input.is_closing():  # nobody reads it any more
            raise Ended("the server has ended")

    # --- what asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.SubprocessTransport)
        self._child = transport
        stdin = transport.get_pipe_transport(0)
        assert isinstance(stdin, asyncio.WriteTransport)
        self._input = stdin

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        if fd != 1:
            self._keep_stderr(data)
            return
        if self._closed is not None:
            return
        try:
            for message in self._framing.feed(data):
                self._take_message(message)
            if self._framing.unread_bytes > MAX_MESSAGE_BYTES:
                raise InvalidAnswer(f"the server sent a message of more than {MAX_MESSAGE_BYTES >> 20} MiB")
        except PeerError as error:
            self._end_soon(error)

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        if fd == 1:
            self._end_soon(None)

    def process_exited(self) -> None:
        self._exited.set()
        # A process that outlived the server may hold its output open.
        asyncio.get_running_loop().call_later(EXIT_S, self._end_soon, None)

    def _end_soon(self, error: PeerError | None) -> None:
        """End what is left of the server. None: it ended by itself, or closed its output."""
        if self._closed is None and self._ending is None:
            self._ending = asyncio.create_task(self._end(error))

    async def _end(self, error: PeerError | None) -> None:
        if error is None:
            await self._wait_for_exit()
            error = Disconnected(self._describe_end())
        self._fail(error)  # nothing, after `close`
        await self._end_group()

    def _take_message(self, data: bytes) -> None:
        if not data.strip():
            return
        try:
            message = decode(data)
        except InvalidAnswer:
            self._count_unasked()
            self.skipped_messages += 1
            if self.skipped_messages == 1:
                shown = one_line(data[:MAX_SKIPPED_CHARS].decode("utf-8", "replace"), MAX_SKIPPED_CHARS)
                log.warning("a server wrote something that is no message (more is only counted): %s", shown)
            return
        self._dispatch(message)

    def _dispatch(self, message: Message) -> None:
        assert self._listener is not None
        match message:
            case Result(id=id, result=result) if (waiting := self._waiting.get(id)) is not None:
                if not waiting.done():
                    waiting.set_result(result)
            case Failure(id=int() | str() as id) if (waiting := self._waiting.get(id)) is not None:
                if not waiting.done():
                    waiting.set_exception(message.as_error())
            case Notification():
                self._count_unasked()
                self._listener.on_notification(message)
            case Request():
                self._count_unasked()
                self._listener.on_request(message, None)
            case _:
                self._count_unasked()  # the answer to a canceled request

    def _count_unasked(self) -> None:
        now = asyncio.get_running_loop().time()
        if now - self._unasked_since > UNASKED_S:
            self._unasked, self._unasked_since = 0, now
        self._unasked += 1
        if self._unasked > MAX_UNASKED:
            raise Disconnected(f"the server sent more than {MAX_UNASKED:,} messages in {UNASKED_S:.0f} s unasked")

    def _keep_stderr(self, data: bytes) -> None:
        self._stderr.append(data[-MAX_STDERR_BYTES:])
        self._stderr_bytes += len(self._stderr[-1])
        while self._stderr_bytes - len(self._stderr[0]) >= MAX_STDERR_BYTES:
            self._stderr_bytes -= len(self._stderr.popleft())

    def _fail(self, error: PeerError, *, is_own: bool = False) -> None:
        """Fail the requests in flight, and refuse new ones."""
        if self._closed is not None:
            return
        self._closed = error
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(error)
        if not is_own and self._listener is not None:
            self._listener.on_closed(error)

    def _describe_end(self) -> str:
        assert self._child is not None
        code = self._child.get_returncode()
        if code is None:
            how = "closed its output"
        elif code < 0:
            how = f"was ended by signal {-code}"
        else:
            how = f"ended with exit code {code}"
        last = next((line for line in reversed(self.stderr_tail.splitlines()) if line.strip()), "")
        return f"the server {how}{f': {one_line(last, 200)}' if last else ''}"
