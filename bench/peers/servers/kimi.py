"""`kimi web` of kimi-code: HTTP to ask, WebSocket to hear; it says how at its own /openapi.json and /asyncapi.json."""

from __future__ import annotations

import json
from typing import Any

from bench.peers.peers import MODEL
from bench.peers.servers.desk import HttpDesk
from bench.peers.servers.http import Http
from bench.peers.servers.port import Delta, Ended, Recount, Rejoined, Told
from bench.peers.servers.ports import free_port
from bench.peers.servers.stream import LIMIT_S, Frame
from bench.peers.servers.websocket import WebSocket
from bench.peers.setting import Contender
from kedge.protocol.address import TcpAddress


class _Socket(WebSocket):
    """Answers the server's pings, which are messages, and whoever does not is cut off; takes `seq` as the mark."""

    def next(self, limit_s: float = LIMIT_S) -> Frame:
        frame = super().next(limit_s)
        event: Any = json.loads(frame.data)
        if event["type"] == "ping":
            self.tell({"type": "pong", "payload": event["payload"]})
        return Frame(frame.at, frame.data, str(event["seq"]) if "seq" in event else None)


class Kimi:
    ready_line = ""
    accepted = "200"
    rejoining = "client_hello with the cursor, and GET /sessions/ID/snapshot"
    no_queue = ""
    no_fan_out = ""
    end_mark = b'{"type":"prompt.completed"'

    def __init__(self, contender: Contender) -> None:
        self._where = TcpAddress("127.0.0.1", free_port())
        self._http = Http(self._where)
        self._workspace = str(contender.workspace)

    def arguments(self) -> list[str]:
        return ["web", "--no-open", "--dangerous-bypass-auth", "--port", str(self._where.port)]

    def answer(self) -> None:
        self._http.call("GET", "/api/v1/meta")

    def open(self) -> HttpDesk:
        session_id = self._ask("POST", "", {"metadata": {"cwd": self._workspace}})["id"]
        return self._desk(session_id, self.join(session_id))

    def reopen(self, session_id: str) -> HttpDesk:
        """Looking at the session loads it; what happened before that look is no news."""
        seen = self._ask("GET", f"/{session_id}/snapshot")
        return self._desk(session_id, self._listen(session_id, str(seen["as_of_seq"])))

    def join(self, session_id: str) -> WebSocket:
        return self._listen(session_id, None)

    def rejoin(self, session_id: str, last: str | None) -> Rejoined:
        ws = self._listen(session_id, last)
        running = self._ask("GET", f"/{session_id}/snapshot")["in_flight_turn"]
        return Rejoined(ws, running["assistant_text"] if running else "")

    def read(self, frame: Frame, session_id: str) -> list[Told]:
        event: Any = json.loads(frame.data)
        if event.get("session_id") != session_id:
            return []
        match event["type"]:
            case "assistant.delta":
                return [Delta(event["payload"]["delta"], event["offset"])]
            case "prompt.completed":
                return [Ended(event["payload"]["reason"])]
            case _:
                return []

    def recount(self, session_id: str, prompt: str) -> Recount:
        """A prompt's end is an event of the log, which is replayed from its beginning."""
        ws = self._listen(session_id, "0")
        events: list[Any] = [json.loads(frame.data) for frame in ws.parsed()]
        ws.close()
        told = [(event["type"], event["payload"]) for event in events if event.get("session_id") == session_id]
        asked = {
            payload["promptId"]
            for kind, payload in told
            if kind == "prompt.submitted" and payload["content"] == [{"type": "text", "text": prompt}]
        }
        ended = [payload for kind, payload in told if kind == "prompt.completed" and payload["promptId"] in asked]
        return Recount(bool(asked), tuple(payload["reason"] for payload in ended))

    def close(self) -> None:
        self._http.close()

    def _desk(self, session_id: str, stream: WebSocket) -> HttpDesk:
        return HttpDesk(Http(self._where), session_id, stream, f"/api/v1/sessions/{session_id}/prompts", _wrapped)

    def _listen(self, session_id: str, last: str | None) -> WebSocket:
        """What is replayed comes before the answer to the greeting; `parsed` and `next` have it."""
        ws = _Socket(self._where, "/api/v1/ws")
        hello: dict[str, object] = {"client_id": "bench", "subscriptions": [session_id]}
        if last is not None:
            hello["cursors"] = {session_id: {"seq": int(last)}}
        ws.tell({"type": "client_hello", "id": "1", "payload": hello})
        heard: list[Frame] = []
        while not heard or b'{"type":"ack"' not in heard[-1].data:
            heard.append(ws.next())
        ws.put_back(heard if last is not None else [])
        return ws

    def _ask(self, method: str, target: str, body: object = None) -> Any:
        return self._http.call(method, f"/api/v1/sessions{target}", body)["data"]


def _wrapped(prompt: str) -> object:
    said = [{"type": "text", "text": prompt}]
    return {"content": said, "model": f"scripted/{MODEL}", "permission_mode": "yolo", "thinking": "off"}
