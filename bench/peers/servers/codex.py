"""`codex app-server`: JSON-RPC over WebSocket; its own `generate-ts` and README say what the calls are."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import Any

from bench.peers.servers.port import Delta, Ended, Recount, Rejoined, Told, Whole
from bench.peers.servers.stream import Frame
from bench.peers.servers.websocket import WebSocket
from bench.peers.setting import Contender
from kedge.protocol.address import UnixAddress

_CLIENT = {"clientInfo": {"name": "bench", "title": "bench", "version": "0"}}


@dataclass(frozen=True)
class _Desk:
    """Asks and hears on one connection."""

    stream: WebSocket
    session_id: str

    def submit(self, prompt: str) -> float:
        self.stream.call("turn/start", {"threadId": self.session_id, "input": [{"type": "text", "text": prompt}]})
        return time.monotonic()

    def close(self) -> None:
        self.stream.close()


class Codex:
    ready_line = ""
    accepted = "the answer to turn/start"
    rejoining = "thread/resume"
    no_queue = "a second prompt joins the turn that runs"
    no_fan_out = ""
    end_mark = b'"method":"turn/completed"'

    def __init__(self, contender: Contender) -> None:
        # Over TCP its answers often took 40 ms longer: this is the server at its best.
        self._where = UnixAddress(str(contender.home / "run" / "codex.sock"))
        self._start = {"cwd": str(contender.workspace), "approvalPolicy": "never"}

    def arguments(self) -> list[str]:
        return ["app-server", "--listen", str(self._where)]

    def answer(self) -> None:
        self._connect().close()

    def open(self) -> _Desk:
        ws = self._connect()
        return _Desk(ws, ws.call("thread/start", self._start)["thread"]["id"])

    def reopen(self, session_id: str) -> _Desk:
        return _Desk(self.join(session_id), session_id)

    def join(self, session_id: str) -> WebSocket:
        """A thread that has run once; before, it has nothing that could be resumed."""
        ws = self._connect()
        ws.call("thread/resume", {"threadId": session_id})
        return ws

    def rejoin(self, session_id: str, last: str | None) -> Rejoined:
        ws = self._connect()
        turns = ws.call("thread/resume", {"threadId": session_id})["thread"]["turns"]
        items = [item["text"] for item in turns[-1]["items"] if item["type"] == "agentMessage"]
        return Rejoined(ws, items[-1] if items else "")

    def read(self, frame: Frame, session_id: str) -> list[Told]:
        event: Any = json.loads(frame.data)
        told: Any = event.get("params") or {}
        if told.get("threadId") != session_id:
            return []
        match event["method"]:
            case "item/agentMessage/delta":
                return [Delta(told["delta"])]
            case "item/completed" if told["item"]["type"] == "agentMessage":
                return [Whole(told["item"]["text"], is_final=True)]
            case "turn/completed":
                return [Ended(told["turn"]["status"])]
            case _:
                return []

    def recount(self, session_id: str, prompt: str) -> Recount:
        ws = self._connect()
        turns = ws.call("thread/read", {"threadId": session_id, "includeTurns": True})["thread"]["turns"]
        ws.close()
        asked = [turn for turn in turns if any(_is_prompt(item, prompt) for item in turn["items"])]
        return Recount(bool(asked), tuple(turn["status"] for turn in asked if turn["status"] != "inProgress"))

    def close(self) -> None:
        """Every connection is somebody else's."""

    def _connect(self) -> WebSocket:
        ws = WebSocket(self._where)
        ws.call("initialize", _CLIENT)
        ws.tell({"method": "initialized"})
        return ws


def _is_prompt(item: Any, prompt: str) -> bool:
    return item["type"] == "userMessage" and any(part.get("text") == prompt for part in item["content"])
