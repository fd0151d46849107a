"""A reader is cut off in the middle of an answer and comes back the way that the server offers: what did it miss, what
was it told twice, and did it hear the end?"""

from __future__ import annotations

import time
from dataclasses import dataclass

from bench.peers.servers.counts import Counts
from bench.peers.servers.fanout import TEXT, answer, losses
from bench.peers.servers.running import Running, View, play
from bench.peers.servers.stream import LIMIT_S, Ended, Silent, Stream
from bench.peers.table import Row
from tests.support.model_control import ModelControl

ROW = Row(
    "Server: what a reader loses that was cut off in the middle of an answer",
    note="The client that asked; it was away while a quarter of the answer was told",
)
_END_S = 10.0  # after the model's last word, in which the end must come


@dataclass(frozen=True)
class Kept:
    deltas: int
    missing: int  # of the deltas, before the server says at the end what the whole was
    doubled: int
    is_abandoned: bool  # whether the server broke the answer off when its reader left
    is_whole: bool  # whether the reader has all of the answer in the end
    is_end_told: bool

    def __str__(self) -> str:
        lost = f"{self.missing} of {self.deltas} deltas missing, {self.doubled} doubled"
        broken = "; the answer was broken off when its reader left" if self.is_abandoned else ""
        return f"{lost}{broken}; whole at the end: {_yes(self.is_whole)}; end told: {_yes(self.is_end_told)}"


def cut_off(server: Running, model: ModelControl, counts: Counts) -> Kept:
    adapter, total = server.adapter, counts.cut_deltas
    model.reset()
    desk = adapter.open()
    play(adapter, desk, "Hello.")
    model.reset()
    model.plan(chunks=total, text=TEXT, delay_ms=counts.pace_ms)
    desk.submit("Tell me slowly.")
    view, last = View(), None
    while len(view.text.split()) < total // 4:
        last = _take(server, desk.stream, desk.session_id, view, LIMIT_S) or last
    desk.close()
    is_abandoned = not _goes_on(model, total // 2)
    rejoined = adapter.rejoin(desk.session_id, last)
    view.adopt(rejoined.text)
    try:
        while not view.ends:
            _take(server, rejoined.stream, desk.session_id, view, _END_S)
    except (Silent, Ended):
        pass
    rejoined.stream.close()
    missing, doubled = losses(view.text, total)
    is_whole = answer(total) in (view.text, view.final)
    return Kept(total, missing, doubled, is_abandoned, is_whole, bool(view.ends))


def _take(server: Running, stream: Stream, session_id: str, view: View, limit_s: float) -> str | None:
    """One frame; its mark."""
    frame = stream.next(limit_s)
    for told in server.adapter.read(frame, session_id):
        view.take(told)
    return frame.id


def _goes_on(model: ModelControl, count: int) -> bool:
    """Until the model has said so much; False when nobody listens to it any more."""
    until = time.monotonic() + LIMIT_S
    while time.monotonic() < until:
        calls = model.stats()["calls"]
        if any(call["deltas"] >= count for call in calls):
            return True
        if all(call["is_gone"] for call in calls):
            return False
        time.sleep(0.02)
    raise Silent(f"the model did not say {count} words")


def _yes(fact: bool) -> str:
    return "yes" if fact else "no"
