"""A server that is nothing but bytes: each connection is played by the next act of a script, in a thread of its own."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

LIMIT_S = 20.0

Act = Callable[[socket.socket], None]


class ByteServer:
    """Listens on a Unix socket; `requests` are the heads and bodies that came. Use as a context."""

    def __init__(self, path: Path, *acts: Act) -> None:
        self.path = path
        self.requests: list[bytes] = []
        self._acts = list(acts)
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        self._thread = threading.Thread(target=self._play)

    @property
    def host(self) -> str:
        return f"unix://{self.path}"

    def __enter__(self) -> ByteServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.join(LIMIT_S)
        self._listener.close()
        assert not self._thread.is_alive(), "the client made fewer connections than the script has acts"

    def _play(self) -> None:
        acting: list[threading.Thread] = []
        for act in self._acts:
            connection, _ = self._listener.accept()
            acting.append(threading.Thread(target=_act, args=(act, connection)))
            acting[-1].start()
        for thread in acting:
            thread.join(LIMIT_S)

    def read_request(self, connection: socket.socket) -> bytes:
        """A whole request: its head, and a body of the length that the head names."""
        data = b""
        while b"\r\n\r\n" not in data:
            piece = connection.recv(65536)
            if not piece:
                return data
            data += piece
        head, _, body = data.partition(b"\r\n\r\n")
        lengths = [line for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")]
        length = int(lengths[0].split(b":")[1]) if lengths else 0
        while len(body) < length:
            body += connection.recv(65536)
        self.requests.append(head + b"\r\n\r\n" + body)
        return self.requests[-1]


def _act(act: Act, connection: socket.socket) -> None:
    with connection:
        connection.settimeout(LIMIT_S)
        act(connection)


def json_answer(value: Any, status: str = "200 OK", *headers: str) -> bytes:
    body = json.dumps(value).encode()
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", "Kedge-Version: 0.1.0", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


def stream_head() -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def chunked(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)
