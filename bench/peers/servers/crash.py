"""The server is killed in the middle of an answer, with another prompt waiting, and started again: what is left?"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass

from bench.peers.servers.counts import Counts
from bench.peers.servers.port import Adapter, Delta, Desk
from bench.peers.servers.running import ADAPTERS, Running, View, play, started
from bench.peers.servers.stream import LIMIT_S, Ended, Silent
from bench.peers.setting import Contender
from bench.peers.table import Row
from tests.support.model_control import ModelControl

ROW = Row(
    "Server: what is left after kill -9 in the middle of an answer",
    note="The server alone was killed, and started again; a second prompt was waiting",
)
_FIRST, _SECOND, _THIRD = "Tell me one.", "Tell me two.", "Tell me three."
_ANSWER = "to-three"
_GATE = "killed"
_ORPHANS_S = 15.0  # for children to notice that their parent is dead


@dataclass(frozen=True)
class Aftermath:
    is_kept: bool
    ends: tuple[str, ...]  # of the prompt that was being answered
    is_asked_again: bool  # whether the model was called for it once more
    no_queue: str
    has_queued_run: bool
    is_next_answered: bool
    orphans: int

    def __str__(self) -> str:
        ends = {0: "no", 1: f"yes ({self.ends[0] if self.ends else ''})"}
        told = {
            "prompt kept": _yes(self.is_kept),
            "end told": ends.get(len(self.ends), f"{len(self.ends)} times"),
            "answer finished": _yes(self.is_asked_again),
            "queued prompt ran": f"no such thing: {self.no_queue}" if self.no_queue else _yes(self.has_queued_run),
            "next prompt works": _yes(self.is_next_answered),
            "processes left behind": str(self.orphans),
        }
        return "; ".join(f"{what}: {fact}" for what, fact in told.items())


def kill(contender: Contender, model: ModelControl, counts: Counts) -> Aftermath:
    adapter = ADAPTERS[contender.name](contender)
    model.reset()
    server = started(contender, adapter)
    try:
        session_id, orphans = _die(server, model)
    finally:
        server.stop()
    server = started(contender, adapter)
    try:
        return _look(server, session_id, orphans, model, counts)
    finally:
        server.stop()


def _die(server: Running, model: ModelControl) -> tuple[str, int]:
    """In the middle of an answer, which goes on as soon as the model is asked again."""
    adapter = server.adapter
    desk = adapter.open()
    play(adapter, desk, "Hello.")
    model.plan(chunks=20, gate=_GATE, gate_after=10)
    desk.submit(_FIRST)
    _await_delta(adapter, desk)
    if not adapter.no_queue:
        desk.submit(_SECOND)
    server.process.kill()
    desk.close()
    model.reset()
    return desk.session_id, server.process.outlived(_ORPHANS_S)


def _look(server: Running, session_id: str, orphans: int, model: ModelControl, counts: Counts) -> Aftermath:
    adapter = server.adapter
    desk = adapter.reopen(session_id)
    until = time.monotonic() + counts.killed_s
    while time.monotonic() < until and not (
        adapter.recount(session_id, _FIRST).ends and (adapter.no_queue or _is_asked(model, _SECOND))
    ):
        time.sleep(0.1)
    first, second = _is_asked(model, _FIRST, without=_SECOND), _is_asked(model, _SECOND)
    desk.close()
    desk = adapter.reopen(session_id)
    is_answered = _is_answered(adapter, desk, model)
    desk.close()
    recount = adapter.recount(session_id, _FIRST)
    return Aftermath(recount.is_kept, recount.ends, first, adapter.no_queue, second, is_answered, orphans)


def _await_delta(adapter: Adapter, desk: Desk) -> None:
    until = time.monotonic() + LIMIT_S
    while time.monotonic() < until:
        if any(isinstance(told, Delta) for told in adapter.read(desk.stream.next(), desk.session_id)):
            return
    raise Silent("the answer did not begin")


def _is_asked(model: ModelControl, prompt: str, without: str = "\0") -> bool:
    """In a conversation in which the other one is not: every later one has the earlier ones in it."""
    bodies = [json.dumps(call["body"]) for call in model.stats()["calls"]]
    return any(prompt in body and without not in body for body in bodies)


def _is_answered(adapter: Adapter, desk: Desk, model: ModelControl) -> bool:
    """Whether a new prompt gets its own answer, and an end; what is told of the past may come before."""
    model.plan(text=_ANSWER)
    desk.submit(_THIRD)
    view, until = View(), time.monotonic() + LIMIT_S
    try:
        while not (view.ends and _ANSWER in f"{view.text} {view.final}"):
            for told in adapter.read(desk.stream.next(until - time.monotonic()), desk.session_id):
                view.take(told)
    except (Silent, Ended):
        return False
    return True


def _yes(fact: bool) -> str:
    return "yes" if fact else "no"
