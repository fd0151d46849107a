"""`opencode serve`: HTTP with one event stream for everything, as its SDK uses it; its documents are at /doc.

The routes below /api of the same server have stored events and a cursor, but no prompt sent there reached the model.
"""

from __future__ import annotations

import json
from typing import Any

from bench.peers.servers.desk import HttpDesk
from bench.peers.servers.http import Http
from bench.peers.servers.port import Delta, Ended, Recount, Rejoined, Told, Whole
from bench.peers.servers.ports import free_port
from bench.peers.servers.stream import Frame, Stream
from bench.peers.setting import Contender
from kedge.protocol.address import TcpAddress


class Opencode:
    ready_line = "listening on"  # its own SDK waits for it: a request that comes before may never be answered
    accepted = "204"
    rejoining = "GET /event again, and GET /session/ID/message"
    no_queue = ""
    no_fan_out = ""
    end_mark = b'"type":"session.idle"'

    def __init__(self, _: Contender) -> None:
        self._where = TcpAddress("127.0.0.1", free_port())
        self._http = Http(self._where)

    def arguments(self) -> list[str]:
        return ["serve", "--hostname", self._where.host, "--port", str(self._where.port)]

    def answer(self) -> None:
        self._http.call("GET", "/global/health")

    def open(self) -> HttpDesk:
        return self.reopen(self._http.call("POST", "/session", {})["id"])

    def reopen(self, session_id: str) -> HttpDesk:
        target = f"/session/{session_id}/prompt_async"
        return HttpDesk(Http(self._where), session_id, self.join(session_id), target, _wrapped)

    def join(self, session_id: str) -> Stream:
        stream = self._http.events("/event")
        while b'"server.connected"' not in stream.next().data:
            pass
        return stream

    def rejoin(self, session_id: str, last: str | None) -> Rejoined:
        """Nothing is replayed: what was missed is asked for."""
        stream = self.join(session_id)
        answers = [message for message in self._messages(session_id) if message["info"]["role"] == "assistant"]
        return Rejoined(stream, _text(answers[-1]) if answers else "")

    def read(self, frame: Frame, session_id: str) -> list[Told]:
        event: Any = json.loads(frame.data)
        told = event["properties"]
        if told.get("sessionID") != session_id:
            return []
        match event["type"]:
            case "message.part.delta" if told["field"] == "text":
                return [Delta(told["delta"])]
            case "message.part.updated" if told["part"]["type"] == "text" and "end" in told["part"].get("time", {}):
                return [Whole(told["part"]["text"], is_final=True)]
            case "session.idle":
                return [Ended("idle")]
            case _:
                return []

    def recount(self, session_id: str, prompt: str) -> Recount:
        """An answer has ended when it has a time of completion, or an error."""
        messages = self._messages(session_id)
        asked = {message["info"]["id"] for message in messages if _text(message) == prompt}
        answers = [message["info"] for message in messages if message["info"].get("parentID") in asked]
        ends = ["failed" if "error" in info else "completed" for info in answers if "completed" in info["time"]]
        return Recount(bool(asked), tuple(ends))

    def close(self) -> None:
        self._http.close()

    def _messages(self, session_id: str) -> list[Any]:
        return self._http.call("GET", f"/session/{session_id}/message")


def _wrapped(prompt: str) -> object:
    return {"parts": [{"type": "text", "text": prompt}]}


def _text(message: Any) -> str:
    return "".join(part["text"] for part in message["parts"] if part["type"] == "text")
