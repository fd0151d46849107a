"""uvicorn's HTTP protocol with bounds on how long a client may take to send a request, which uvicorn leaves to proxies.

Only what a client sends is timed. A stream of events, or a request that waits for a run, lives as long as it likes.
"""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

# From connecting, or from the first byte of a later request, to the end of the headers.
HEAD_S = 10.0
# Each time that passes while a body is sent, at least so much of it must have come: 1 KiB a second.
BODY_S = 10.0
MIN_BODY_BYTES = 10 * 1024
# A connection on which nothing happens between two requests.
KEEP_ALIVE_S = 75


class TimedProtocol(HttpToolsProtocol):
    _timer: asyncio.TimerHandle | None = None
    _is_in_body = False
    _body_bytes = 0  # since the timer was started

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        self._start_timer(HEAD_S)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._timer is None:
            self._start_timer(HEAD_S)  # until a whole head is there, also for bytes that begin none
        super().data_received(data)

    def on_message_begin(self) -> None:
        if self._timer is None:  # in the same data as the end of the request before
            self._start_timer(HEAD_S)
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._is_in_body, self._body_bytes = True, 0
        self._start_timer(BODY_S)
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._is_in_body = False
        self._stop_timer()
        super().on_message_complete()

    def _start_timer(self, seconds: float) -> None:
        self._stop_timer()
        self._timer = self.loop.call_later(seconds, self._time_out)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _time_out(self) -> None:
        self._timer = None
        # While reading is paused the client can send nothing: the application has not taken what came before.
        if self._is_in_body and (self.flow.read_paused or self._body_bytes >= MIN_BODY_BYTES):
            self._body_bytes = 0
            self._start_timer(BODY_S)
            return
        # Without an answer: a client that was suspended takes it for a lost connection, and sends its request again.
        self.transport.abort()
