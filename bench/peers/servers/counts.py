"""How much of everything: a table that means something, or a test that takes seconds."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Counts:
    prompts: int = 500  # in one session
    span: int = 100  # prompts that are compared: the first so many, and the last
    block: int = 50  # prompts of one server before it is the next one's turn
    prompts_s: float = 300.0  # that a peer may take for them in all; some would take half an hour
    deltas: int = 2_000  # of one answer
    readers: tuple[int, ...] = (1, 10, 100)
    settle_s: float = 3.0  # until a server that has just started is idle
    cut_deltas: int = 400  # of the answer whose reader is cut off
    pace_ms: float = 5.0  # between two of these
    killed_s: float = 10.0  # in which a restarted server shows what it makes of the past


FULL = Counts()
