"""Bytes that many readers send at their own pace, without a copy of them for each (P11).

What a piece refers to never changes up to its size: it is bytes, or a text that only grows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple


class Piece(NamedTuple):
    data: bytes | bytearray | memoryview
    size: int


def piece(data: bytes | bytearray | memoryview) -> Piece:
    """All of it as it is now, whatever comes after it later."""
    return Piece(data, len(data))


def chunks_of(pieces: Sequence[Piece], max_bytes: int) -> Iterator[bytes]:
    """One after the other, cut anywhere. Each chunk is made when it is asked for."""
    cut: list[bytes | bytearray | memoryview] = []
    room = max_bytes
    for data, size in pieces:
        start = 0
        while start < size:
            end = min(size, start + room)
            cut.append(data[start:end])
            room -= end - start
            start = end
            if room == 0:
                chunk = b"".join(cut)
                cut.clear()  # a reader may stay here for long
                room = max_bytes
                yield chunk
    if cut:
        yield b"".join(cut)
