"""A relay between a client and its server that can lose the streams and let them return with a wrong cursor."""

from __future__ import annotations

import contextlib
import re
import socket
import threading
from pathlib import Path

LIMIT_S = 30.0


class Relay:
    """Listens on a Unix socket in front of the server's. Use as a context."""

    def __init__(self, path: Path, server: str) -> None:
        self.host = f"unix://{path}"
        self._server = server
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        self._streams: list[socket.socket] = []
        self._is_lossy = False
        self._may_return = threading.Event()

    def __enter__(self) -> Relay:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for stream in self._streams:
            _shut(stream)

    def lose_streams(self) -> None:
        """Cut every stream; who comes back waits for `let_return`."""
        self._is_lossy = True
        for stream in self._streams:
            _shut(stream)

    def let_return(self) -> None:
        """A stream can be had again, but with the cursor of another log: the server says `stream_reset`."""
        self._may_return.set()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._relay, args=(client,), daemon=True).start()

    def _relay(self, client: socket.socket) -> None:
        server = socket.socket(socket.AF_UNIX)
        with client, server, contextlib.suppress(OSError):
            server.connect(self._server)
            back = threading.Thread(target=_pump, args=(server, client), daemon=True)
            back.start()
            while piece := client.recv(65536):
                # A client sends its next request when it has the answer, so that each begins with a piece.
                if piece.startswith(b"GET ") and b"/events" in piece.split(b"\r\n", 1)[0]:
                    piece = self._stream(client, piece)
                server.sendall(piece)
            _shut(server)
            back.join(LIMIT_S)

    def _stream(self, client: socket.socket, request: bytes) -> bytes:
        self._streams.append(client)
        if not self._is_lossy:
            return request
        assert self._may_return.wait(LIMIT_S)
        return re.sub(rb"log_id=[^& ]+", b"log_id=another", request, count=1)


def _pump(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while piece := source.recv(65536):
            target.sendall(piece)
    _shut(target)


def _shut(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
