"""HTTP/1.1 for clients, without I/O: requests as bytes, and a parser that takes an answer in pieces of any size.

Importing `http.client` instead would double the start-up time of `kedge run`: it brings the e-mail parser and TLS.
"""

from __future__ import annotations

MAX_HEAD_BYTES = 64 * 1024  # far more than servers send
_SAFE = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")
_HEX = frozenset(b"0123456789abcdefABCDEF")
_MAX_DIGITS = 15  # of a length


class BrokenResponse(ConnectionError):
    """The bytes are not a complete HTTP response."""


def build_request(method: str, target: str, headers: dict[str, str], body: bytes | None = None) -> bytes:
    """`target` must be escaped. Raises ValueError for a line break, which would start another header."""
    lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
    if body is not None:
        lines.append(f"Content-Length: {len(body)}")
    if any("\r" in line or "\n" in line or "\0" in line for line in lines):
        raise ValueError("line break or NUL in a request line or header")
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + (body or b"")


def build_query(**fields: str | float | None) -> str:
    given = [f"{name}={escape(str(value))}" for name, value in fields.items() if value is not None]
    return f"?{'&'.join(given)}" if given else ""


def escape(text: str) -> str:
    """Percent-encode for a path or a query. (`urllib.parse` would import `ipaddress`.)"""
    return "".join(chr(byte) if byte in _SAFE else f"%{byte:02X}" for byte in text.encode("utf-8", "replace"))


class ResponseParser:
    """Parses one answer: `feed` returns the new part of its body; `status` and `headers` are set when `has_head` is."""

    def __init__(self, *, has_body: bool = True) -> None:
        """`has_body=False`: for the answer to CONNECT, after which the connection belongs to the tunnel."""
        self._has_body = has_body
        self.status = 0
        self.headers: dict[str, str] = {}
        self.is_complete = False
        self.is_reusable = False  # whether another request may follow on the connection
        self._buffer = bytearray()
        self._parse = self._parse_head
        self._left = 0  # bytes of the body, or of the chunk, still to come
        self._head_bytes = 0  # of interim answers, chunk sizes and trailers since the last byte of the body
        self._body: list[bytes] = []

    @property
    def has_head(self) -> bool:
        return self.status != 0

    def feed(self, data: bytes) -> bytes:
        self._buffer += data
        while not self.is_complete and self._parse():
            pass
        if self.is_complete and self._buffer:
            self.is_reusable = False  # bytes that belong to no request
        body = b"".join(self._body)
        self._body.clear()
        return body

    def eof(self) -> None:
        """Note that the server closed the connection. Raises `BrokenResponse` unless that ends the body."""
        if self._parse == self._parse_until_close:
            self.is_complete = True
        if not self.is_complete:
            has_begun = self.has_head or self._buffer
            raise BrokenResponse("the answer is incomplete" if has_begun else "the server sent no answer")

    # Each state consumes what it can of the buffer and returns whether the next state can go on.

    def _parse_head(self) -> bool:
        head = self._take_until(b"\r\n\r\n")
        if head is None:
            return False
        first, *fields = head.decode("latin-1").split("\r\n")
        version, _, rest = first.partition(" ")
        code = rest.partition(" ")[0]
        if version not in ("HTTP/1.0", "HTTP/1.1") or len(code) != 3 or not code.isdecimal() or code < "100":
            raise BrokenResponse("the answer is not HTTP")
        if code.startswith("1"):
            return True  # an interim answer: the final one follows
        for field in fields:
            name, _, value = field.partition(":")
            name, value = name.strip().lower(), value.strip()
            known = self.headers.get(name)
            self.headers[name] = value if known is None or known == value else f"{known}, {value}"
        self.status = int(code)
        self._choose_body(version)
        return True

    def _choose_body(self, version: str) -> None:
        connection = self.headers.get("connection", "").lower()
        self.is_reusable = "close" not in connection and (version != "HTTP/1.0" or "keep-alive" in connection)
        length = self.headers.get("content-length")
        encoding = self.headers.get("transfer-encoding", "").lower()
        if not self._has_body:
            self.is_complete = self.is_reusable = True  # many proxies answer as HTTP/1.0, or with "Connection: close"
        elif self.status in (204, 304):
            self.is_complete = True
        elif encoding == "chunked":
            self._parse = self._parse_chunk_size
        elif encoding:
            raise BrokenResponse(f"the answer has an unknown transfer encoding: {encoding[:50]}")
        elif length is not None:
            if not length.isdecimal() or len(length) > _MAX_DIGITS:
                raise BrokenResponse("the answer has a length that is not a number")
            self._left = int(length)
            self._parse = self._parse_sized
            self.is_complete = self._left == 0
        else:
            self._parse = self._parse_until_close
            self.is_reusable = False

    def _parse_sized(self) -> bool:
        self._take_body()
        self.is_complete = self._left == 0
        return False

    def _parse_until_close(self) -> bool:
        self._left = len(self._buffer)
        self._take_body()
        return False

    def _parse_chunk_size(self) -> bool:
        line = self._take_until(b"\r\n")
        if line is None:
            return False
        size = line.partition(b";")[0].rstrip()
        if not 0 < len(size) <= _MAX_DIGITS or not _HEX.issuperset(size):
            raise BrokenResponse("the server sent a chunk without a size")
        self._left = int(size, 16)
        self._parse = self._parse_chunk if self._left else self._parse_trailer
        return True

    def _parse_chunk(self) -> bool:
        self._take_body()
        if self._left:
            return False
        self._parse = self._parse_chunk_end
        return True

    def _parse_chunk_end(self) -> bool:
        line = self._take_until(b"\r\n")
        if line is None:
            return False
        if line:
            raise BrokenResponse("the server sent a chunk that is longer than its size")
        self._parse = self._parse_chunk_size
        return True

    def _parse_trailer(self) -> bool:
        line = self._take_until(b"\r\n")
        if line is None:
            return False
        self.is_complete = not line
        return True

    def _take_until(self, separator: bytes) -> bytes | None:
        """Return the bytes before a separator, None if it has not arrived. Bounds what is not part of the body."""
        end = self._buffer.find(separator)
        if self._head_bytes + (end if end >= 0 else len(self._buffer)) > MAX_HEAD_BYTES:
            raise BrokenResponse("the answer is not HTTP, or has too many headers")
        if end < 0:
            return None
        taken = bytes(self._buffer[:end])
        del self._buffer[: end + len(separator)]
        self._head_bytes += end + len(separator)
        return taken

    def _take_body(self) -> None:
        piece = bytes(self._buffer[: self._left])
        del self._buffer[: len(piece)]
        self._left -= len(piece)
        if piece:
            self._head_bytes = 0
            self._body.append(piece)
