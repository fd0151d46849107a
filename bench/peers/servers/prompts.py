"""How soon is a prompt taken, and how soon is it over, on a warm server with an instant model; is the 500th as fast as
the first, and what has it cost in memory? All servers run, and are asked in turns, so that noise hits all."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from bench.measure import percentile
from bench.peers.servers.counts import Counts
from bench.peers.servers.running import Played, Running, play
from bench.peers.table import Cell, Row
from tests.support.model_control import ModelControl

WARM = 5  # prompts in a session of their own: the first of a server loads more


@dataclass
class Asked:
    """A server with the one session of all its prompts."""

    server: Running
    session_id: str
    played: list[Played] = field(default_factory=list[Played])
    spent_s: float = 0.0
    idle_mib: float = 0.0
    failure: str = ""

    def is_over(self, counts: Counts) -> bool:
        return bool(self.failure) or len(self.played) >= counts.prompts or self.spent_s > counts.prompts_s


def opened(server: Running) -> Asked:
    """Both sessions have run once: before that, some cannot be come back to."""
    for count in (WARM, 1):
        desk = server.adapter.open()
        for _ in range(count):
            play(server.adapter, desk, "Hello.")
        desk.close()
    return Asked(server, desk.session_id, idle_mib=server.process.held_mib())


def ask(asked: Sequence[Asked], model: ModelControl, counts: Counts) -> None:
    """Everybody's prompts, a block each in turns."""
    while left := [each for each in asked if not each.is_over(counts)]:
        for each in left:
            model.reset()  # what the model keeps must not be what makes the later ones slow
            try:
                _ask_block(each, min(counts.block, counts.prompts - len(each.played)))
            except Exception as error:  # noqa: BLE001 - whatever a peer does, the others go on
                each.failure = f"prompt {len(each.played) + 1}: {error}"


def _ask_block(each: Asked, prompts: int) -> None:
    """With a client that has just come to the session: some throw out one that was silent while others were asked."""
    adapter = each.server.adapter
    desk = adapter.reopen(each.session_id)
    began = time.monotonic()
    try:
        for _ in range(prompts):
            each.played.append(play(adapter, desk, "Hello."))
    finally:
        each.spent_s += time.monotonic() - began
        desk.close()


def cells(asked: Sequence[Asked], counts: Counts) -> list[Cell]:
    last = counts.prompts - counts.span
    accepted = Row("Server: prompt to accepted, warm", "ms", f"All of {counts.prompts} prompts in one session")
    first_span = Row(f"Server: prompt to end, warm, prompts 1 to {counts.span}", "ms", "An instant model")
    last_span = Row(f"Server: prompt to end, warm, prompts {last + 1} to {counts.prompts}", "ms", "The same session")
    memory = Row(f"Server: memory after {counts.prompts} prompts", "MiB", "Of all its processes")
    found: list[Cell] = []
    for each in asked:
        name = each.server.name
        ends = [played.ended_s * 1e3 for played in each.played]
        failures = [each.failure] if each.failure else []
        takes = [played.accepted_s * 1e3 for played in each.played]
        receipt = Cell(accepted, name, takes, failures=failures, words=_p99(takes, each.server.adapter.accepted))
        early = Cell(first_span, name, ends[: counts.span], failures=failures, words=_p99(ends[: counts.span]))
        late, size = Cell(last_span, name, failures=failures), Cell(memory, name, failures=failures)
        if len(ends) == counts.prompts:
            late.values = ends[last:]
            ratio = percentile(late.values, 50) / percentile(early.values, 50)
            late.words = _p99(late.values, f"{ratio:.2f} times the first {counts.span}")
            size.values = [each.server.process.held_mib()]
            size.words = f"{size.values[0] - each.idle_mib:+.1f} since the first {WARM}"
        elif not failures:
            late.words = size.words = f"{len(ends)} prompts took {each.spent_s:.0f} s; it was asked no more"
        found += [receipt, early, late, size]
    return sorted(found, key=lambda cell: (accepted, first_span, last_span, memory).index(cell.row))


def _p99(values: Sequence[float], remark: str = "") -> str:
    told = [f"p99 {percentile(values, 99):.1f}"] if values else []
    return "; ".join([*told, *([remark] if remark else [])])
