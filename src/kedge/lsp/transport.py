"""JSON-RPC over the standard streams of a language server: each message has a header with its length."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

import msgspec

from kedge.jsonrpc.errors import InvalidAnswer, RpcError
from kedge.jsonrpc.messages import Failure, Message, Notification, Request, RequestId, Result
from kedge.jsonrpc.stdio import Command, RecordProcess, StdioConnection

MAX_HEADER_BYTES = 64 * 1024  # of lines that are no header, too: some servers print them
MAX_BODY_BYTES = 64 * 1024 * 1024

_LENGTH = re.compile(rb"content-length:[ \t]*(\d{1,12})[ \t]*\r?$", re.IGNORECASE | re.MULTILINE)


class ContentLengthFraming:
    def __init__(self) -> None:
        self._buffer = bytearray()
        self._length: int | None = None  # of the body that comes next

    @property
    def unread_bytes(self) -> int:
        return len(self._buffer)

    def feed(self, data: bytes) -> Iterator[bytes]:
        self._buffer += data
        while (length := self._length if self._length is not None else self._read_header()) is not None:
            self._length = length
            if len(self._buffer) < length:
                return
            body = bytes(self._buffer[:length])
            del self._buffer[:length]
            self._length = None
            yield body

    def wrap(self, message: bytes) -> bytes:
        return b"Content-Length: %d\r\n\r\n%b" % (len(message), message)

    def _read_header(self) -> int | None:
        """Return the length that the next header names; None if it is not complete. Other lines are skipped."""
        while (end := self._buffer.find(b"\r\n\r\n", 0, MAX_HEADER_BYTES)) >= 0:
            found = _LENGTH.search(bytes(self._buffer[: end + 2]))
            del self._buffer[: end + 4]
            if found is not None:
                if (length := int(found[1])) > MAX_BODY_BYTES:
                    raise InvalidAnswer(f"the server announced a message of {length:,} bytes")
                return length
        if len(self._buffer) > MAX_HEADER_BYTES:
            raise InvalidAnswer("the server sent no header of a message")
        return None


class LspTransport(StdioConnection):
    """Counts messages, so that it is known whether a notification came before or after an answer."""

    def __init__(self, command: Command, record_process: RecordProcess) -> None:
        super().__init__(command, record_process, ContentLengthFraming())
        self.received = 0
        self.answered_at: dict[RequestId, int] = {}  # of requests in flight, the count at their answers

    async def request(self, request: Request) -> msgspec.Raw:
        try:
            return await super().request(request)
        finally:
            self.answered_at.pop(request.id, None)

    async def request_position(self, request: Request) -> int:
        """Send a request; return the position of its answer among all messages that came."""
        with contextlib.suppress(RpcError):
            await super().request(request)
        return self.answered_at.pop(request.id)

    def _dispatch(self, message: Message) -> None:
        self.received += 1
        if isinstance(message, Result | Failure) and message.id in self._waiting:
            self.answered_at[message.id] = self.received
        super()._dispatch(message)

    def cancel_notification(self, request: Request) -> Notification:
        return Notification(method="$/cancelRequest", params={"id": request.id})
