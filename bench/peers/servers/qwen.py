"""`qwen serve` of qwen-code: HTTP with an event stream for each session; its docs/developers/qwen-serve-protocol.md."""

from __future__ import annotations

import json
from typing import Any

from bench.peers.servers.desk import HttpDesk
from bench.peers.servers.http import Http
from bench.peers.servers.port import Delta, Ended, Recount, Rejoined, Told
from bench.peers.servers.ports import free_port
from bench.peers.servers.stream import Frame, Stream
from bench.peers.setting import Contender
from kedge.protocol.address import TcpAddress


class Qwen:
    ready_line = ""
    accepted = "202"
    rejoining = "Last-Event-ID"
    no_queue = ""
    no_fan_out = ""
    end_mark = b'"type":"turn_complete"'

    def __init__(self, contender: Contender) -> None:
        self._where = TcpAddress("127.0.0.1", free_port())
        self._http = Http(self._where)
        self._session = {"cwd": str(contender.workspace)}

    def arguments(self) -> list[str]:
        return ["serve", "--no-web", "--port", str(self._where.port)]

    def answer(self) -> None:
        self._http.call("GET", "/health")

    def open(self) -> HttpDesk:
        return self._desk(self._http.call("POST", "/session", {**self._session, "sessionScope": "thread"})["sessionId"])

    def reopen(self, session_id: str) -> HttpDesk:
        """A session that is only stored must be loaded before it can be talked to."""
        self._load(session_id)
        return self._desk(session_id)

    def join(self, session_id: str) -> Stream:
        return self._http.events(self._events(session_id))

    def rejoin(self, session_id: str, last: str | None) -> Rejoined:
        cursor = {"Last-Event-ID": last} if last else {}
        return Rejoined(self._http.events(self._events(session_id), cursor))

    def read(self, frame: Frame, session_id: str) -> list[Told]:
        event: Any = json.loads(frame.data)
        told: Any = event.get("data") or {}
        match event["type"]:
            case "session_update" if told["update"]["sessionUpdate"] == "agent_message_chunk":
                text = told["update"]["content"]["text"]
                return [Delta(text)] if text else []
            case "turn_complete":
                return [Ended(told["stopReason"])]
            case "turn_error":
                return [Ended("failed")]
            case _:
                return []

    def recount(self, session_id: str, prompt: str) -> Recount:
        """A loaded session is told as events again."""
        loaded = self._load(session_id)
        events: list[Any] = [*loaded.get("compactedReplay", []), *loaded.get("liveJournal", [])]
        asked = [event.get("promptId") for event in events if _said(event) == prompt]
        ends = [
            told.how
            for event in events
            if event.get("promptId") in asked
            for told in self.read(Frame(0.0, json.dumps(event).encode()), session_id)
            if isinstance(told, Ended)
        ]
        return Recount(bool(asked), tuple(ends))

    def close(self) -> None:
        self._http.close()

    def _events(self, session_id: str) -> str:
        """With the longest queue that a reader may have: whoever is further behind is thrown out."""
        return f"/session/{session_id}/events?maxQueued=2048"

    def _load(self, session_id: str) -> Any:
        return self._http.call("POST", f"/session/{session_id}/load", self._session)

    def _desk(self, session_id: str) -> HttpDesk:
        target = f"/session/{session_id}/prompt"
        return HttpDesk(Http(self._where), session_id, self.join(session_id), target, _wrapped)


def _wrapped(prompt: str) -> object:
    return {"prompt": [{"type": "text", "text": prompt}]}


def _said(event: Any) -> str | None:
    data: Any = event.get("data") or {}
    update: Any = data.get("update") or {}
    return update["content"]["text"] if update.get("sessionUpdate") == "user_message_chunk" else None
