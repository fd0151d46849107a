"""A bounded ring of encoded frames: the newest part of a workspace's story, the same bytes for every reader.

A position counts frames since the ring was made and never means another frame later: a reader below `start` fell off.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import compress

# Some minutes of a busy workspace. Whoever is further behind reads the store, where nothing is lost.
RING_BYTES = 4 * 1024 * 1024


class Ring:
    def __init__(self, head: int, max_bytes: int = RING_BYTES) -> None:
        self.head = head  # seq of the newest event
        self.start = 0  # position of the oldest frame that is still here
        self._max_bytes = max_bytes
        self._before_seq = head  # seq of the newest event that is not here any more
        self._frames: list[bytes] = []
        self._seqs: list[int] = []  # for each frame: the newest event up to it
        self._is_logged: list[bool] = []
        self._sessions: list[str] = []
        self._ends: list[int] = []  # for each frame: bytes up to its end, since the ring was made
        self._total = 0
        self._taken: tuple[tuple[int, int], bytes] = ((0, 0), b"")

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
        if self.size_bytes > self._max_bytes * 5 // 4:  # in larger bites, so that a push costs little on average
            self._drop(bisect_right(self._ends, self._total - self._max_bytes, hi=len(self._ends) - 1))

    def clear(self) -> None:
        self._drop(len(self._frames))

    def skip_to(self, seq: int) -> None:
        """The events up to `seq` never came here: nobody may go on from what was here before."""
        self.clear()
        self.start += 1  # the place of those that are missing, so that readers at the end fell off too
        self.head = self._before_seq = seq

    def reaches(self, seq: int) -> bool:
        """Whether every event after `seq` is here."""
        return seq >= self._before_seq

    def position_after(self, seq: int) -> int:
        return self.start + bisect_right(self._seqs, seq)

    def seq_at(self, position: int) -> int:
        """The newest event before `position`."""
        index = position - self.start
        return self._seqs[index - 1] if index > 0 else self._before_seq

    def take(
        self, position: int, max_bytes: int, *, session_id: str | None = None, logged_only: bool = False
    ) -> tuple[bytes, int]:
        """Frames from `position` on (at least one, else as many as fit), and the position after them."""
        first = position - self.start
        budget = (self._ends[first] - len(self._frames[first])) + max_bytes
        last = max(first + 1, bisect_right(self._ends, budget, lo=first))
        if session_id is None and not logged_only:
            return self._joined(first, last), self.start + last
        chosen = [
            (self._is_logged[i] or not logged_only) and session_id in (None, self._sessions[i])
            for i in range(first, last)
        ]
        return b"".join(compress(self._frames[first:last], chosen)), self.start + last

    def _joined(self, first: int, last: int) -> bytes:
        """Readers that keep up all ask for the same frames: they are joined once for all of them."""
        key = (self.start + first, self.start + last)
        if self._taken[0] != key:
            self._taken = (key, b"".join(self._frames[first:last]))
        return self._taken[1]

    def _drop(self, count: int) -> None:
        if count == 0:
            return
        self._before_seq = self._seqs[count - 1]
        self.start += count
        for column in (self._frames, self._seqs, self._is_logged, self._sessions, self._ends):
            del column[:count]
        self._taken = ((0, 0), b"")
