"""`goose serve`: the Agent Client Protocol over HTTP, with one event stream for a connection and one for each session.

Its WebSocket would be one connection for everything, and what is told while it is cut would be told to nobody.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any

from bench.peers.servers.http import Http
from bench.peers.servers.port import Delta, Ended, Recount, Rejoined, Told
from bench.peers.servers.ports import free_port
from bench.peers.servers.stream import LIMIT_S, Frame, Silent, Stream
from bench.peers.setting import Contender
from kedge.protocol.address import TcpAddress

_CLIENT = {"protocolVersion": 1, "clientCapabilities": {}, "clientInfo": {"name": "bench", "version": "0"}}
_PATH = "/acp"
_QUIET_S = 1.0  # after which a replay that has no end mark is over


@dataclass(frozen=True)
class _Desk:
    http: Http  # its headers name the connection and the session
    session_id: str
    stream: Stream
    of_connection: Stream
    wrap: Callable[[str, object], object]

    def submit(self, prompt: str) -> float:
        asked = {"sessionId": self.session_id, "prompt": [{"type": "text", "text": prompt}]}
        self.http.call("POST", _PATH, self.wrap("session/prompt", asked))
        return time.monotonic()

    def close(self) -> None:
        for each in (self.stream, self.of_connection, self.http):
            each.close()


class Goose:
    ready_line = ""
    accepted = "202"
    rejoining = "GET of the same session's stream"
    no_queue = "a second prompt is refused"
    no_fan_out = (
        "a session's stream has one reader, the next is answered 409; other connections are told what is stored"
    )
    end_mark = b'"stopReason"'

    def __init__(self, contender: Contender) -> None:
        self._where = TcpAddress("127.0.0.1", free_port())
        self._session = {"cwd": str(contender.workspace), "mcpServers": list[object]()}
        self._serials = count(1)
        # By their sessions: a client that comes back says which one it had.
        self._connections: dict[str, dict[str, str]] = {}

    def arguments(self) -> list[str]:
        return ["serve", "--port", str(self._where.port), "--dangerously-unauthenticated"]

    def answer(self) -> None:
        self._connect()

    def open(self) -> _Desk:
        connection = self._connect()
        http = Http(self._where, connection)
        of_connection = http.events(_PATH)
        http.call("POST", _PATH, self._message("session/new", self._session))
        session_id = _answered(of_connection)["sessionId"]
        http.close()
        return self._desk(connection, session_id, of_connection)

    def reopen(self, session_id: str) -> _Desk:
        connection = self._connect()
        desk = self._desk(connection, session_id, Http(self._where, connection).events(_PATH))
        for _ in self._load(desk):
            pass
        return desk

    def join(self, session_id: str) -> Stream:
        raise NotImplementedError(self.no_fan_out)

    def rejoin(self, session_id: str, last: str | None) -> Rejoined:
        return Rejoined(Http(self._where, self._connections[session_id]).events(_PATH))

    def read(self, frame: Frame, session_id: str) -> list[Told]:
        event: Any = json.loads(frame.data)
        if "stopReason" in (event.get("result") or {}):
            return [Ended(event["result"]["stopReason"])]
        if "error" in event:
            return [Ended("failed")]
        told: Any = event.get("params") or {}
        if told.get("sessionId") == session_id and told["update"]["sessionUpdate"] == "agent_message_chunk":
            return [Delta(told["update"]["content"]["text"])]
        return []

    def recount(self, session_id: str, prompt: str) -> Recount:
        """What is stored has messages and no ends."""
        connection = self._connect()
        desk = self._desk(connection, session_id, Http(self._where, connection).events(_PATH))
        asked = [update for update in self._load(desk) if update["sessionUpdate"] == "user_message_chunk"]
        desk.close()
        return Recount(any(update["content"].get("text") == prompt for update in asked), ())

    def close(self) -> None:
        """Every connection is somebody else's."""

    def _connect(self) -> dict[str, str]:
        http = Http(self._where)
        try:
            _, headers = http.exchange("POST", _PATH, self._message("initialize", _CLIENT))
        finally:
            http.close()
        return {"Acp-Connection-Id": headers["acp-connection-id"]}

    def _desk(self, connection: dict[str, str], session_id: str, of_connection: Stream) -> _Desk:
        self._connections[session_id] = {**connection, "Acp-Session-Id": session_id}
        http = Http(self._where, self._connections[session_id])
        return _Desk(http, session_id, http.events(_PATH), of_connection, self._message)

    def _load(self, desk: _Desk) -> Iterator[Any]:
        """The updates by which it tells what is stored."""
        asked = self._message("session/load", {"sessionId": desk.session_id, **self._session})
        desk.http.call("POST", _PATH, asked)
        try:
            while True:
                event: Any = json.loads(desk.stream.next(_QUIET_S).data)
                if event.get("method") == "session/update":
                    yield event["params"]["update"]
        except Silent:
            return

    def _message(self, method: str, params: object) -> object:
        return {"jsonrpc": "2.0", "id": next(self._serials), "method": method, "params": params}


def _answered(stream: Stream) -> Any:
    until = time.monotonic() + LIMIT_S
    while True:
        event: Any = json.loads(stream.next(until - time.monotonic()).data)
        if "result" in event:
            return event["result"]
