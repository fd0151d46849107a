"""HTTP/1.1 from the client's side, as bytes: a request to send, and a parser that takes an answer in any pieces.

`http.client` would do the same and cost every `kedge run` as much as all the rest of it: it imports the e-mail parser
and TLS.
"""

from __future__ import annotations

from kedge.client.errors import Dropped

MAX_HEAD_BYTES = 64 * 1024  # far above what a server of ours sends; whatever is longer is not one
_SAFE = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")


def request(method: str, target: str, headers: dict[str, str], body: bytes | None = None) -> bytes:
    """`target` must be escaped; a line break in a header would be a second header, and is refused."""
    fields = dict(headers)
    if body is not None:
        fields["Content-Length"] = str(len(body))
    lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items())]
    if any("\r" in line or "\n" in line for line in lines):
        raise ValueError("a line break in a request's head")
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + (body or b"")


def query(**fields: str | float | None) -> str:
    given = [f"{name}={escape(str(value))}" for name, value in fields.items() if value is not None]
    return f"?{'&'.join(given)}" if given else ""


def escape(text: str) -> str:
    """For a path or a query. (`urllib.parse` brings `ipaddress` along.)"""
    return "".join(chr(byte) if byte in _SAFE else f"%{byte:02X}" for byte in text.encode("utf-8", "replace"))


class ResponseParser:
    """One answer. `feed` returns what came of the body; `status` and `headers` are there once the head was read."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.is_complete = False
        self.is_reusable = False  # whether another request may follow on the connection
        self._buffer = bytearray()
        self._state = self._head
        self._left = 0  # bytes of the body, or of the chunk, still to come
        self._body: list[bytes] = []

    @property
    def has_head(self) -> bool:
        return self.status != 0

    def feed(self, data: bytes) -> bytes:
        self._buffer += data
        while not self.is_complete and self._state():
            pass
        body = b"".join(self._body)
        self._body.clear()
        return body

    def eof(self) -> None:
        """The server closed the connection: that is the end of a body without a length, and an accident otherwise."""
        if self._state == self._until_close:
            self.is_complete = True
        if not self.is_complete:
            raise Dropped("the server closed the connection in the middle of an answer")

    # Each state takes what it can from the buffer and says whether the next one may have a try.

    def _head(self) -> bool:
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            if len(self._buffer) > MAX_HEAD_BYTES:
                raise Dropped("what answers there does not speak HTTP")
            return False
        first, *fields = bytes(self._buffer[:end]).decode("latin-1").split("\r\n")
        del self._buffer[: end + 4]
        version, _, rest = first.partition(" ")
        code = rest[:3]
        if not version.startswith("HTTP/1.") or not code.isdecimal():
            raise Dropped("what answers there does not speak HTTP")
        if code.startswith("1"):
            return True  # an interim answer: the real one follows
        for field in fields:
            name, _, value = field.partition(":")
            self.headers[name.strip().lower()] = value.strip()
        self.status = int(code)
        self._choose_body(version)
        return True

    def _choose_body(self, version: str) -> None:
        connection = self.headers.get("connection", "").lower()
        self.is_reusable = "close" not in connection and (version != "HTTP/1.0" or "keep-alive" in connection)
        length = self.headers.get("content-length", "")
        if self.status in (204, 304):
            self.is_complete = True
        elif "chunked" in self.headers.get("transfer-encoding", "").lower():
            self._state = self._chunk_size
        elif length.isdecimal():
            self._left = int(length)
            self._state = self._sized
            self.is_complete = self._left == 0
        else:
            self._state = self._until_close
            self.is_reusable = False

    def _sized(self) -> bool:
        self._take_body()
        self.is_complete = self._left == 0
        return False

    def _until_close(self) -> bool:
        self._left = len(self._buffer)
        self._take_body()
        return False

    def _chunk_size(self) -> bool:
        line = self._line()
        if line is None:
            return False
        try:
            self._left = int(line.partition(b";")[0], 16)
        except ValueError:
            raise Dropped("the server sent a chunk without a size") from None
        self._state = self._chunk if self._left else self._trailer
        return True

    def _chunk(self) -> bool:
        self._take_body()
        if self._left:
            return False
        self._state = self._chunk_end
        return True

    def _chunk_end(self) -> bool:
        line = self._line()
        if line is None:
            return False
        if line:
            raise Dropped("the server sent a chunk that is longer than its size")
        self._state = self._chunk_size
        return True

    def _trailer(self) -> bool:
        line = self._line()
        if line is None:
            return False
        self.is_complete = not line
        return True

    def _line(self) -> bytes | None:
        end = self._buffer.find(b"\r\n")
        if end < 0:
            if len(self._buffer) > MAX_HEAD_BYTES:
                raise Dropped("what answers there does not speak HTTP")
            return None
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 2]
        return line

    def _take_body(self) -> None:
        piece = bytes(self._buffer[: self._left])
        del self._buffer[: len(piece)]
        self._left -= len(piece)
        if piece:
            self._body.append(piece)
