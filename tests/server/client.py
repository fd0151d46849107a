"""The plainest HTTP client there is: one connection for each request, nothing retried, every byte seen."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, Self
from urllib.parse import quote, urlencode

from kedge.protocol.address import Address, TcpAddress, UnixAddress, parse
from kedge.protocol.events import Event, decode_event

LIMIT_S = 30.0  # of every wait; generous, because the machine may be busy


class Answer(NamedTuple):
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        """What an error says it is; every error has the same shape."""
        assert self.json.keys() == {"code", "message"}, self.body
        assert self.json["message"], self.body
        assert "\n" not in self.json["message"], self.body
        return self.json["code"]


class Frame(NamedTuple):
    raw: bytes
    event: Event


class Connection(http.client.HTTPConnection):
    def __init__(self, address: Address) -> None:
        super().__init__(address.host if isinstance(address, TcpAddress) else "localhost", timeout=LIMIT_S)
        self._address = address

    def connect(self) -> None:
        self.sock = connect(self._address)


def connect(address: Address) -> socket.socket:
    if isinstance(address, TcpAddress):
        return socket.create_connection((address.host, address.port), LIMIT_S)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.settimeout(LIMIT_S)
    try:
        sock.connect(address.path)
    except OSError:
        sock.close()
        raise
    return sock


class Client:
    def __init__(self, address: Address | str, token: str | None = None) -> None:
        self.address = parse(address) if isinstance(address, str) else address
        self.headers = {"Authorization": f"Bearer {token}"} if token else {}
        if isinstance(self.address, TcpAddress):
            self.headers["Host"] = str(self.address).removeprefix("tcp://")

    def ask(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        headers: Mapping[str, str] | None = None,
        raw: bool = False,
    ) -> Answer:
        """One request. `body` is JSON, or with `raw` bytes that are sent as they are."""
        connection = Connection(self.address)
        sent = dict(self.headers)
        data: Any = None
        if body is not None:
            sent["Content-Type"] = "application/json"
            data = body if raw else json.dumps(body)
        try:
            connection.request(method, path, data, {**sent, **(headers or {})})
            response = connection.getresponse()
            return Answer(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())
        finally:
            connection.close()

    def get(self, path: str, **query: object) -> Answer:
        return self.ask("GET", path + (f"?{urlencode(query)}" if query else ""))

    def post(self, path: str, body: object = None, **headers: str) -> Answer:
        return self.ask("POST", path, body, headers={k.replace("_", "-"): v for k, v in headers.items()})

    def said(self, data: bytes) -> bytes:
        """Everything that the server says to these bytes until it hangs up."""
        with connect(self.address) as sock:
            sock.sendall(data)
            return b"".join(iter(lambda: sock.recv(65536), b""))

    def events(self, workspace: str, *, headers: Mapping[str, str] | None = None, **query: object) -> Events:
        return Events(self, f"{workspace}/events?{urlencode(query)}", headers)

    # the words of most stories

    def workspace(self, path: object) -> str:
        """Join a directory; returns the path of its routes."""
        return f"/v1/workspaces/{done(self.post('/v1/workspaces', {'path': str(path)}))['id']}"

    def session(self, workspace: str, title: str = "") -> str:
        return done(self.post(f"{workspace}/sessions", {"title": title}))["id"]

    def submit(self, workspace: str, session_id: str, prompt: str, **fields: object) -> str:
        body = {"session_id": session_id, "prompt": prompt, **fields}
        return done(self.post(f"{workspace}/agent", body), 202)["run_id"]

    def ended(self, workspace: str, run_id: str) -> dict[str, Any]:
        run = done(self.get(f"{workspace}/runs/{quote(run_id)}", wait=LIMIT_S))
        assert run["state"] not in ("queued", "running"), run
        return run

    def metric(self, name: str) -> float:
        lines = self.get("/v1/metrics").body.decode().splitlines()
        return next(float(line.rpartition(" ")[2]) for line in lines if line.rpartition(" ")[0] == name)


def done(answer: Answer, status: int = 200) -> Any:
    assert answer.status == status, f"{answer.status}: {answer.body[:500]!r}"
    return answer.json


class Events:
    """A subscription, frame by frame."""

    def __init__(self, client: Client, path: str, headers: Mapping[str, str] | None = None) -> None:
        self._connection = Connection(client.address)
        self._connection.request("GET", path, headers={**client.headers, **(headers or {})})
        self.response = self._connection.getresponse()
        self.frames: list[Frame] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.response.close()
        self._connection.close()

    def __iter__(self) -> Iterator[Event]:
        """Until the server ends the stream, in order: a broken one raises."""
        lines: list[bytes] = []
        while line := self.response.readline():
            lines.append(line)
            if line == b"\n":
                data = next(each for each in lines if each.startswith(b"data: "))
                frame = Frame(b"".join(lines), decode_event(data.removeprefix(b"data: ")))
                self.frames.append(frame)
                lines = []
                yield frame.event
        assert not lines, f"the stream ended in the middle of a frame: {lines}"

    def until(self, matches: Callable[[Event], bool] | str) -> list[Event]:
        """All events up to the first that matches, or is of that type."""
        seen: list[Event] = []
        for event in self:
            seen.append(event)
            if event.type == matches if isinstance(matches, str) else matches(event):
                return seen
        raise AssertionError(f"the stream ended after {[event.type for event in seen]}")

    def end_of(self, run_id: str) -> list[Event]:
        return self.until(lambda event: event.type == "run_complete" and getattr(event.payload, "run_id", "") == run_id)

    @property
    def log_frames(self) -> list[bytes]:
        return [frame.raw for frame in self.frames if frame.event.seq is not None]


def unix(path: object) -> UnixAddress:
    return UnixAddress(str(path))
