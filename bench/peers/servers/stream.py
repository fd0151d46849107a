"""A connection on which a server tells its story: whole frames with the moment they came, read by whoever waits.

No thread reads beside the one that measures: what came while nobody read waits in the socket, as it would for any
client that is busy.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

LIMIT_S = 60.0  # of every wait: generous, because some peers are slow and the machine may be busy
RECEIVE_BYTES = 1024 * 1024


class Silent(Exception):
    """What was waited for did not come; the message says what that was."""


class Ended(Exception):
    """The server closed the connection."""


@dataclass(frozen=True)
class Frame:
    at: float  # of the monotonic clock
    data: bytes
    id: str | None = None  # the server's own mark, where it has one


class Parser(Protocol):
    def feed(self, data: bytes) -> Iterable[tuple[bytes, str | None]]:
        """The frames that these bytes complete, each with its mark."""
        ...


class Stream:
    def __init__(self, sock: socket.socket, parser: Parser) -> None:
        self.sock = sock
        self.is_raw = False  # whether what comes is only kept, to be parsed by `parsed` when there is time
        self._parser = parser
        self._frames: deque[Frame] = deque()
        self._raw: list[bytes] = []

    def next(self, limit_s: float = LIMIT_S) -> Frame:
        until = time.monotonic() + limit_s
        while not self._frames:
            left_s = until - time.monotonic()
            if left_s <= 0:
                raise Silent(f"nothing more came for {limit_s:.0f} s")
            self.sock.settimeout(left_s)
            try:
                self.receive()
            except TimeoutError:
                raise Silent(f"nothing more came for {limit_s:.0f} s") from None
        return self._frames.popleft()

    def receive(self) -> bytes:
        """Take what is there, or what comes next."""
        try:
            data = self.sock.recv(RECEIVE_BYTES)
        except ConnectionError as error:
            raise Ended(str(error)) from error
        if not data:
            raise Ended("the server closed the connection")
        if self.is_raw:
            self._raw.append(data)
        else:
            self._parse(data)
        return data

    def parsed(self) -> list[Frame]:
        """All frames that were not taken yet, also of what was only kept."""
        for data in self._raw:
            self._parse(data)
        self._raw.clear()
        frames = list(self._frames)
        self._frames.clear()
        return frames

    def has(self, mark: bytes) -> bool:
        """Whether it is in a frame that was not taken yet."""
        return any(mark in frame.data for frame in self._frames)

    def put_back(self, frames: Iterable[Frame]) -> None:
        """What somebody read who waited for something else."""
        self._frames.extendleft(reversed(list(frames)))

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)
        self.sock.close()

    def _parse(self, data: bytes) -> None:
        now = time.monotonic()
        self._frames.extend(Frame(now, body, mark) for body, mark in self._parser.feed(data))
