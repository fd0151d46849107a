"""A reader is cut off in the middle of an answer and comes back the way that the server offers: what did it miss, what
was it told twice, and did it hear the end?"""

from __future__ import annotations

import contextlib
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
_GATE = "half"  # where the model waits for the reader to be back
_END_S = 30.0  # in which the end must come, besides what the model takes


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
    model.plan(chunks=total, text=TEXT, delay_ms=counts.pace_ms, gate=_GATE, gate_after=total // 2)
    desk.submit("Tell me slowly.")
    view = View()
    last = _hear(server, desk.stream, desk.session_id, view, words=total // 4, limit_s=LIMIT_S)
    desk.close()
    is_abandoned = not _goes_on(model)
    rejoined = adapter.rejoin(desk.session_id, last)
    model.release(_GATE)
    view.adopt(rejoined.text)
    limit_s = _END_S + total * counts.pace_ms / 1e3
    with contextlib.suppress(Silent, Ended):
        _hear(server, rejoined.stream, desk.session_id, view, words=total + 1, limit_s=limit_s)
    rejoined.stream.close()
    missing, doubled = losses(view.text, total)
    is_whole = answer(total) in (view.text, view.final)
    return Kept(total, missing, doubled, is_abandoned, is_whole, bool(view.ends))


def _hear(server: Running, stream: Stream, session_id: str, view: View, *, words: int, limit_s: float) -> str | None:
    """Until the reader has so many words, or the end; the last mark that it was given."""
    until, last = time.monotonic() + limit_s, None
    while not view.ends and len(view.text.split()) < words:
        frame = stream.next(until - time.monotonic())
        for told in server.adapter.read(frame, session_id):
            view.take(told)
        last = frame.id or last
    return last


def _goes_on(model: ModelControl) -> bool:
    """Until the model has said one half; False when nobody listens to it any more."""
    until = time.monotonic() + LIMIT_S
    while time.monotonic() < until:
        calls = model.stats()["calls"]
        if any(call["held"] == _GATE for call in calls):
            return True
        if all(call["is_gone"] for call in calls):
            return False
        time.sleep(0.02)
    raise Silent("the model did not say one half of its answer")


def _yes(fact: bool) -> str:
    return "yes" if fact else "no"
