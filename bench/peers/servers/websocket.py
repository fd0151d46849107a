"""Just enough of WebSocket (RFC 6455) for JSON-RPC on one machine: text messages, no extensions; and the JSON-RPC."""

from __future__ import annotations

import base64
import json
import os
import socket
import struct
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from bench.peers.servers.http import connect
from bench.peers.servers.stream import LIMIT_S, RECEIVE_BYTES, Ended, Frame, Stream
from kedge.protocol.address import Address, UnixAddress

_TEXT, _CLOSE, _PING, _PONG = 1, 8, 9, 10
_NONE: Mapping[str, str] = {}


class Failed(Exception):
    """The answer to a call was an error."""


class WebSocket(Stream):
    def __init__(self, where: Address, path: str = "/", headers: Mapping[str, str] = _NONE) -> None:
        sock = connect(where)
        sock.settimeout(LIMIT_S)
        try:
            rest = _shake_hands(sock, where, path, headers)
        except BaseException:
            sock.close()
            raise
        super().__init__(sock, _Messages(lambda body: self._send(body, _PONG), rest))
        self._calls = 0

    def call(self, method: str, params: object) -> Any:
        """Ask, and wait for the answer; what comes meanwhile is kept for `next`."""
        serial = self.begin(method, params)
        others: list[Frame] = []
        while True:
            frame = self.next()
            if is_answer(frame.data, serial):
                break
            others.append(frame)
        self.put_back(others)
        told: dict[str, Any] = json.loads(frame.data)
        if "error" in told:
            raise Failed(f"{method}: {json.dumps(told['error'])[:300]}")
        return told["result"]

    def begin(self, method: str, params: object) -> int:
        """Ask, and wait for nothing; the number of the call."""
        self._calls += 1
        self.tell({"jsonrpc": "2.0", "id": self._calls, "method": method, "params": params})
        return self._calls

    def tell(self, message: object) -> None:
        self._send(json.dumps(message).encode(), _TEXT)

    def _send(self, body: bytes, opcode: int) -> None:
        size, mask = len(body), os.urandom(4)
        if size < 126:
            length = bytes([0x80 | size])
        elif size < 1 << 16:
            length = bytes([0x80 | 126]) + struct.pack(">H", size)
        else:
            length = bytes([0x80 | 127]) + struct.pack(">Q", size)
        masked = bytes(byte ^ mask[i % 4] for i, byte in enumerate(body))
        self.sock.settimeout(LIMIT_S)
        self.sock.sendall(bytes([0x80 | opcode]) + length + mask + masked)


def is_answer(data: bytes, serial: int) -> bool:
    if b'"id"' not in data:
        return False
    told: Any = json.loads(data)
    return told.get("id") == serial and "method" not in told


class _Messages:
    def __init__(self, pong: Callable[[bytes], None], rest: bytes) -> None:
        self._pong = pong
        self._bytes = bytearray(rest)
        self._parts: list[bytes] = []

    def feed(self, data: bytes) -> Iterable[tuple[bytes, str | None]]:
        self._bytes += data
        taken, found = 0, list[tuple[bytes, str | None]]()
        while (frame := self._frame(taken)) is not None:
            first, body, taken = frame
            match first & 0x0F:
                case 8:
                    raise Ended("the server closed the connection")
                case 9:
                    self._pong(body)
                case 10:
                    pass
                case _:
                    self._parts.append(body)
                    if first & 0x80:
                        found.append((b"".join(self._parts), None))
                        self._parts.clear()
        del self._bytes[:taken]
        return found

    def _frame(self, at: int) -> tuple[int, bytes, int] | None:
        """First byte, body, and where the next one begins; None while it is not whole."""
        have = len(self._bytes) - at
        if have < 2:
            return None
        size, head = self._bytes[at + 1] & 0x7F, 2
        if size >= 126:
            head = 4 if size == 126 else 10
            if have < head:
                return None
            size = int.from_bytes(self._bytes[at + 2 : at + head], "big")
        if have < head + size:
            return None
        return self._bytes[at], bytes(self._bytes[at + head : at + head + size]), at + head + size


def _shake_hands(sock: socket.socket, where: Address, path: str, headers: Mapping[str, str]) -> bytes:
    """Returns what came after the head."""
    host = "localhost" if isinstance(where, UnixAddress) else f"{where.host}:{where.port}"
    fields = {
        "Host": host,
        "Upgrade": "websocket",
        "Connection": "Upgrade",
        "Sec-WebSocket-Key": base64.b64encode(os.urandom(16)).decode(),
        "Sec-WebSocket-Version": "13",
        **headers,
    }
    lines = [f"GET {path} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items()), "", ""]
    sock.sendall("\r\n".join(lines).encode())
    told = b""
    while b"\r\n\r\n" not in told:
        data = sock.recv(RECEIVE_BYTES)
        if not data:
            raise Ended("closed before the WebSocket was open")
        told += data
    head, _, rest = told.partition(b"\r\n\r\n")
    if b" 101 " not in head.partition(b"\r\n")[0]:
        raise Ended(f"no WebSocket: {head[:100].decode('latin-1')}")
    return rest
