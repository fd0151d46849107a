"""A bounded buffer of the newest encoded frames of a workspace, shared by all its readers.

A position counts frames since the ring was created, so it always means the same frame. The frames below `start` are
dropped: a reader there has to read the store.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import compress

# Some minutes of a busy workspace. Readers that are further behind read the store.
RING_BYTES = 4 * 1024 * 1024


class Ring:
    def __init__(self, head: int, max_bytes: int = RING_BYTES) -> None:
        self.head = head  # seq of the newest event
        self.start = 0  # position of the oldest frame
        self._max_bytes = max_bytes
        self._before_seq = head  # seq of the newest dropped event
        self._frames: list[bytes] = []
        self._seqs: list[int] = []  # for each frame: seq of the newest event up to it
        self._is_logged: list[bool] = []
        self._sessions: list[str] = []
        self._ends: list[int] = []  # for each frame: bytes up to its end, since the ring was created
        self._total = 0
        self._joined: tuple[tuple[int, int], bytes] = ((0, 0), b"")  # the last result of `_join`

    @property
    def end(self) -> int:
        return self.start + len(self._frames)

    @property
    def size_bytes(self) -> int:
        return self._total - (self._ends[0] - len(self._frames[0])) if self._frames else 0

    def push(self, frame: bytes, session_id: str, seq: int | None = None) -> None:
        if seq is not None:
            self.head = seq
        self._total += len(frame)
        self._frames.append(frame)
        self._seqs.append(self.head)
        self._is_logged.append(seq is not None)
        self._sessions.append(session_id)
        self._ends.append(self._total)
        if self.size_bytes > self._max_bytes * 5 // 4:  # many at once: a push costs little on average
            self._drop(bisect_right(self._ends, self._total - self._max_bytes, hi=len(self._ends) - 1))

    def clear(self) -> None:
        self._drop(len(self._frames))

    def skip_to(self, seq: int) -> None:
        """Drop all frames because events up to `seq` are missing: readers have to read the store."""
        self.clear()
        self.start += 1  # the position of the missing events: also readers at the end are now below `start`
        self.head = self._before_seq = seq

    def reaches(self, seq: int) -> bool:
        """Whether the ring has every event after `seq`."""
        return seq >= self._before_seq

    def position_after(self, seq: int) -> int:
        return self.start + bisect_right(self._seqs, seq)

    def seq_at(self, position: int) -> int:
        """Return the seq of the newest event before `position`."""
        index = position - self.start
        return self._seqs[index - 1] if index > 0 else self._before_seq

    def take(
        self, position: int, max_bytes: int, *, session_id: str | None = None, logged_only: bool = False
    ) -> tuple[bytes, int]:
        """Return joined frames from `position` on, at least one and as many as fit, and the position after them."""
        first = position - self.start
        budget = (self._ends[first] - len(self._frames[first])) + max_bytes
        last = max(first + 1, bisect_right(self._ends, budget, lo=first))
        if session_id is None and not logged_only:
            return self._join(first, last), self.start + last
        chosen = [
            (self._is_logged[i] or not logged_only) and session_id in (None, self._sessions[i])
            for i in range(first, last)
        ]
        return b"".join(compress(self._frames[first:last], chosen)), self.start + last

    def _join(self, first: int, last: int) -> bytes:
        """Join frames; the result is cached, because readers that keep up all ask for the same ones."""
        key = (self.start + first, self.start + last)
        if self._joined[0] != key:
            self._joined = (key, b"".join(self._frames[first:last]))
        return self._joined[1]

    def _drop(self, count: int) -> None:
        if count == 0:
            return
        self._before_seq = self._seqs[count - 1]
        self.start += count
        for column in (self._frames, self._seqs, self._is_logged, self._sessions, self._ends):
            del column[:count]
        self._joined = ((0, 0), b"")
