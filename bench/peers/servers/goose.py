"""`goose serve`: the Agent Client Protocol over WebSocket."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from bench.peers.servers.port import Delta, Ended, Recount, Rejoined, Told
from bench.peers.servers.ports import free_port
from bench.peers.servers.stream import Frame, Silent, Stream
from bench.peers.servers.websocket import WebSocket
from bench.peers.setting import Contender
from kedge.protocol.address import TcpAddress

_CLIENT = {"protocolVersion": 1, "clientCapabilities": {}, "clientInfo": {"name": "bench", "version": "0"}}
_QUIET_S = 1.0  # after which a replay that has no end mark is over


@dataclass(frozen=True)
class _Desk:
    """The answer to a prompt comes when the turn ends, so nothing but the story says that it was taken."""

    stream: WebSocket
    session_id: str

    def submit(self, prompt: str) -> None:
        asked = {"sessionId": self.session_id, "prompt": [{"type": "text", "text": prompt}]}
        self.stream.begin("session/prompt", asked)

    def close(self) -> None:
        self.stream.close()


class Goose:
    ready_line = ""
    accepted = "the first update; there is no receipt"
    rejoining = "session/load"
    no_queue = "a second prompt is refused"
    no_fan_out = "only the connection that asked is told; session/load on another one replays what is stored"
    end_mark = b'"stopReason"'

    def __init__(self, contender: Contender) -> None:
        self._where = TcpAddress("127.0.0.1", free_port())
        self._session = {"cwd": str(contender.workspace), "mcpServers": list[object]()}

    def arguments(self) -> list[str]:
        return ["serve", "--port", str(self._where.port), "--dangerously-unauthenticated"]

    def answer(self) -> None:
        self._connect().close()

    def open(self) -> _Desk:
        ws = self._connect()
        return _Desk(ws, ws.call("session/new", self._session)["sessionId"])

    def reopen(self, session_id: str) -> _Desk:
        ws = self._connect()
        for _ in self._load(ws, session_id):
            pass
        return _Desk(ws, session_id)

    def join(self, session_id: str) -> Stream:
        raise NotImplementedError(self.no_fan_out)

    def rejoin(self, session_id: str, last: str | None) -> Rejoined:
        ws = self._connect()
        text = ""
        for update in self._load(ws, session_id):
            match update["sessionUpdate"]:
                case "user_message_chunk":
                    text = ""  # of the answer to the last prompt
                case "agent_message_chunk":
                    text += update["content"]["text"]
                case _:
                    pass
        return Rejoined(ws, text)

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
        ws = self._connect()
        updates = list(self._load(ws, session_id))
        ws.close()
        asked = [update for update in updates if update["sessionUpdate"] == "user_message_chunk"]
        return Recount(any(update["content"].get("text") == prompt for update in asked), ())

    def close(self) -> None:
        """Every connection is somebody else's."""

    def _connect(self) -> WebSocket:
        ws = WebSocket(self._where, "/acp")
        ws.call("initialize", _CLIENT)
        return ws

    def _load(self, ws: WebSocket, session_id: str) -> Iterator[Any]:
        """The updates by which it tells what is stored."""
        ws.call("session/load", {"sessionId": session_id, **self._session})
        try:
            while True:
                event: Any = json.loads(ws.next(_QUIET_S).data)
                if event.get("method") == "session/update":
                    yield event["params"]["update"]
        except Silent:
            return
