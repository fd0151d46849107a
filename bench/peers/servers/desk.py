"""The client of a server that takes prompts by HTTP and tells its story on a stream beside it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from bench.peers.servers.http import Http
from bench.peers.servers.stream import Stream


@dataclass(frozen=True)
class HttpDesk:
    """Its answer to a prompt is the receipt."""

    http: Http
    session_id: str
    stream: Stream
    target: str  # where prompts are posted to
    wrap: Callable[[str], object]  # a prompt, as the server wants it

    def submit(self, prompt: str) -> float:
        self.http.call("POST", self.target, self.wrap(prompt))
        return time.monotonic()

    def close(self) -> None:
        self.stream.close()
        self.http.close()
