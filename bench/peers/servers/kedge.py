"""`kedge serve`: HTTP on a Unix socket; docs/contract.md."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cached_property
from typing import Any

from bench.peers.servers.desk import HttpDesk
from bench.peers.servers.http import Http
from bench.peers.servers.port import Delta, Ended, Recount, Rejoined, Told, Whole
from bench.peers.servers.stream import Frame, Stream
from bench.peers.setting import Contender
from kedge.protocol.address import UnixAddress


class Kedge:
    ready_line = ""
    accepted = "202, the prompt is stored"
    rejoining = "Last-Event-ID"
    no_queue = ""
    no_fan_out = ""
    end_mark = b'"type":"run_complete"'

    def __init__(self, contender: Contender) -> None:
        self._contender = contender

    def arguments(self) -> list[str]:
        return ["serve"]

    def answer(self) -> None:
        http = self._connect()
        try:
            http.call("GET", "/v1/health")
        finally:
            http.close()

    def open(self) -> HttpDesk:
        return self.reopen(self._http.call("POST", f"{self._path}/sessions", {})["id"])

    def reopen(self, session_id: str) -> HttpDesk:
        def wrap(prompt: str) -> object:
            return {"session_id": session_id, "prompt": prompt}

        return HttpDesk(self._connect(), session_id, self.join(session_id), f"{self._path}/agent", wrap)

    def join(self, session_id: str) -> Stream:
        stream = self._http.events(f"{self._path}/events?session_id={session_id}")
        while b'"caught_up"' not in stream.next().data:
            pass
        return stream

    def rejoin(self, session_id: str, last: str | None) -> Rejoined:
        """The log events that were missed, then what is being written as it is now, then what comes."""
        cursor = {"Last-Event-ID": last} if last else {}
        return Rejoined(self._http.events(f"{self._path}/events?session_id={session_id}", cursor))

    def read(self, frame: Frame, session_id: str) -> list[Told]:
        event: Any = json.loads(frame.data)
        payload = event["payload"].get("payload", {})
        match event["type"]:
            case "message_delta" if payload["kind"] == "text":
                return [Delta(payload["text"], payload["offset"])]
            case "message" if payload["role"] == "assistant":
                text = "".join(part["text"] for part in payload["parts"] if part["type"] == "text")
                return [Whole(text, is_final=any(part["type"] == "finish" for part in payload["parts"]))]
            case "run_complete":
                return [Ended(_how(payload))]
            case _:
                return []

    def recount(self, session_id: str, prompt: str) -> Recount:
        told = [(event["type"], event["payload"].get("payload", {})) for event in self._log()]
        runs = {payload["run_id"] for kind, payload in told if kind == "run" and payload["prompt"] == prompt}
        ends = [_how(payload) for kind, payload in told if kind == "run_complete" and payload["run_id"] in runs]
        return Recount(bool(runs), tuple(ends))

    def close(self) -> None:
        self._http.close()

    def _log(self) -> Iterator[Any]:
        """All of it: earlier prompts may have filled many pages."""
        after, head = 0, 1
        while after < head:
            page = self._http.call("GET", f"{self._path}/log?after={after}")
            yield from page["events"]
            head = page["head"]
            after = page["events"][-1]["seq"] if page["events"] else head

    def _connect(self) -> Http:
        sockets = list((self._contender.home / "run" / "kedge").glob("*.sock"))
        if not sockets:
            raise FileNotFoundError("the server has no socket yet")
        return Http(UnixAddress(str(sockets[0])))

    @cached_property
    def _http(self) -> Http:
        return self._connect()

    @cached_property
    def _path(self) -> str:
        workspace = self._http.call("POST", "/v1/workspaces", {"path": str(self._contender.workspace)})
        return f"/v1/workspaces/{workspace['id']}"


def _how(payload: dict[str, Any]) -> str:
    return "failed" if payload.get("error") else "cancelled" if payload.get("cancelled") else "completed"
