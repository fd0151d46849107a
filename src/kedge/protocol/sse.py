"""A parser of server-sent events, for our own stream and those of models. Frames may be split anywhere.

Lines end at LF, CRLF or CR only (U+2028 is text).
"""

from __future__ import annotations

Frame = tuple[str | None, bytes, str]  # its `id:`, `data:` and `event:`

_BOM = b"\xef\xbb\xbf"


class SseParser:
    """Use one for each connection: an incomplete frame is lost with it."""

    def __init__(self) -> None:
        self.pending_bytes = 0  # of the incomplete frame
        self.retry_ms: int | None = None  # the last `retry:`, which says when to connect again
        self._line: list[bytes] = []  # pieces of the incomplete line
        self._data: list[bytes] = []
        self._id: str | None = None
        self._name = ""
        self._is_after_cr = False
        self._is_first_line = True

    def feed(self, chunk: bytes) -> list[Frame]:
        """Return the frames that this chunk completes."""
        if self._is_after_cr and chunk:
            self._is_after_cr = False
            chunk = chunk.removeprefix(b"\n")
        frames: list[Frame] = []
        for line in chunk.splitlines(keepends=True):  # for bytes: only LF, CRLF and CR
            self.pending_bytes += len(line)
            content = line.rstrip(b"\r\n")
            if len(content) == len(line):
                self._line.append(line)
                break
            if self._line:
                content = b"".join([*self._line, content])
                self._line.clear()
            if frame := self._take(content):
                frames.append(frame)
        if chunk:
            self._is_after_cr = chunk.endswith(b"\r")
        return frames

    def _take(self, line: bytes) -> Frame | None:
        if self._is_first_line:
            self._is_first_line = False
            line = line.removeprefix(_BOM)
        if not line:
            return self._dispatch()
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            self._data.append(value)
        elif name == b"id":
            self._id = value.decode("utf-8", "replace")
        elif name == b"retry" and value.isdigit() and len(value) < 10:
            self.retry_ms = int(value)
        elif name == b"event":
            self._name = value.decode("utf-8", "replace")
        return None

    def _dispatch(self) -> Frame | None:
        frame = (self._id, b"\n".join(self._data), self._name) if self._data else None
        self._data, self._id, self._name, self.pending_bytes = [], None, "", 0
        return frame
