"""Where an answer is cut: at a byte, or around the edge of a frame. What was cut, and what was not, is written down."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

EDGE = b"\n\n"  # of a frame; JSON has no line breaks, and the lines of HTTP end with CRLF
HEAD = b"\r\n\r\n"


class Spot(NamedTuple):
    """So many bytes after the edge (or before it) of a frame with this label."""

    label: str
    offset: int


class Cut:
    """One connection that is to be cut at a byte, or at a spot. `made` hears whether it was, at its end."""

    def __init__(self, at: int | Spot, made: Callable[[bool], None], *, passed: Callable[[str], object] = str) -> None:
        self._at = at if isinstance(at, int) else None
        self._spot = at if isinstance(at, Spot) else None
        self._made = made
        self._tell = passed  # hears the label of each frame that the client has got
        self._seen = bytearray()
        self._passed = 0
        self._scanned = 0
        self._is_made = False

    def let(self, data: bytes) -> tuple[bytes, bool]:
        self._seen += data
        self._scan()
        upto = len(self._seen) if self._at is None else min(self._at, len(self._seen))
        through = bytes(self._seen[self._passed : upto])
        self._passed = upto
        self._is_made = self._at is not None and len(self._seen) >= self._at
        return through, self._is_made

    def close(self) -> None:
        self._made(self._is_made)

    def _scan(self) -> None:
        """Frames that have come, until the spot is known. What is behind a known spot is not looked at."""
        while self._at is None or self._spot is None:
            separator = EDGE if self._scanned else HEAD
            end = self._seen.find(separator, self._scanned)
            if end < 0:
                return
            edge = end + len(separator)
            label = label_of(bytes(self._seen[self._scanned : edge])) if self._scanned else "head"
            self._scanned = edge
            self._tell(label)
            if self._spot is not None and label == self._spot.label:
                self._at = edge + self._spot.offset


class Pool:
    """Cuts at bytes: each stream takes the next; one that ended before its byte gives it back."""

    def __init__(self, places: list[int]) -> None:
        self.made = 0
        self._left = deque(places)

    def __len__(self) -> int:
        return len(self._left)

    def take(self) -> Cut | None:
        if not self._left:
            return None
        place = self._left.popleft()

        def made(is_made: bool) -> None:
            self.made += is_made
            if not is_made:
                self._left.append(place)

        return Cut(place, made)


class Walk:
    """Cuts at spots, one stream after the other, in the order of the story."""

    def __init__(self, spots: list[Spot], *, passed: Callable[[Spot, str], None]) -> None:
        self._left = deque(spots)
        self._passed = passed

    @property
    def left(self) -> list[Spot]:
        return list(self._left)

    def take(self) -> Cut | None:
        if not self._left:
            return None
        spot = self._left[0]

        def made(is_made: bool) -> None:
            if is_made:
                self._left.popleft()

        return Cut(spot, made, passed=lambda label: self._passed(spot, label))


def label_of(frame: bytes) -> str:
    """What a frame tells, in a word or two: the same for every run of the same kind."""
    data = next(line for line in frame.split(b"\n") if line.startswith(b"data: "))
    event: dict[str, Any] = json.loads(data.removeprefix(b"data: "))
    told = event["payload"].get("payload", {})
    match event["type"]:
        case "run":
            return f"run {told['state']}"
        case "message" if "seq" not in event:
            return "snapshot"
        case "message":
            is_finished = any(part["type"] == "finish" for part in told["parts"])
            return f"{told['role']} message{' finished' if is_finished else ''}"
        case kind:
            return kind
