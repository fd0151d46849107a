"""What the checks look up in a record again and again."""

from __future__ import annotations

import bisect
from collections import defaultdict
from functools import cached_property

from kedge.protocol.events import AgentEvent
from kedge.protocol.messages import Message
from kedge.protocol.requests import PermissionRequest, QuestionRequest, RequestResolution
from kedge.protocol.runs import Run, RunEnd
from kedge.protocol.sessions import Session
from tests.soak.record import Record, Sent
from tests.support.invariants import final_messages, run_events, state_of


class Facts:
    def __init__(self, record: Record) -> None:
        self.record = record
        self.log = record.log

    @cached_property
    def accepted(self) -> dict[str, Run]:
        """Every run as its first event tells it."""
        found: dict[str, Run] = {}
        for _, run in run_events(self.log):
            found.setdefault(run.run_id, run)
        return found

    @cached_property
    def newest(self) -> dict[str, Run]:
        return {run.run_id: run for _, run in run_events(self.log)}

    @cached_property
    def ends(self) -> dict[str, tuple[int, RunEnd]]:
        return {e.payload.run_id: (e.seq or 0, e.payload) for e in self.log if isinstance(e.payload, RunEnd)}

    @cached_property
    def states(self) -> dict[str, str]:
        return {run_id: state_of(end) for run_id, (_, end) in self.ends.items()}

    @cached_property
    def messages(self) -> dict[str, Message]:
        return final_messages(self.log)

    @cached_property
    def tries(self) -> dict[str, list[Sent]]:
        found: dict[str, list[Sent]] = defaultdict(list)
        for sent in self.record.sent:
            found[sent.run_id].append(sent)
        return found

    @cached_property
    def first_sent(self) -> dict[str, float]:
        return {run_id: min(sent.asked.began for sent in tries) for run_id, tries in self.tries.items()}

    @cached_property
    def receipts(self) -> dict[str, float]:
        """When the first receipt of a run was in its client's hands."""
        found: dict[str, float] = {}
        for sent in self.record.sent:
            if sent.asked.status == 202:
                found[sent.run_id] = min(sent.asked.ended, found.get(sent.run_id, sent.asked.ended))
        return found

    @cached_property
    def hosts(self) -> dict[str, str]:
        return {run_id: run.merged_into for run_id, run in self.newest.items() if run.merged_into is not None}

    @cached_property
    def turns(self) -> dict[str, set[str]]:
        """The runs of each turn, by its host."""
        found: dict[str, set[str]] = {}
        for run_id, host in self.hosts.items():
            found.setdefault(host, {host}).add(run_id)
        return found

    def mates(self, run_id: str) -> set[str]:
        """The runs of the same turn, itself included."""
        return self.turns.get(self.hosts.get(run_id, run_id), {run_id})

    @cached_property
    def parents(self) -> dict[str, str]:
        return {run_id: run.parent_run_id for run_id, run in self.accepted.items() if run.parent_run_id is not None}

    @cached_property
    def interrupts(self) -> dict[str, list[Run]]:
        """Runs that were sent to interrupt a turn, or promoted to: by session, each as it was when it did."""
        found: dict[str, list[Run]] = defaultdict(list)
        seen: set[str] = set()
        for _, run in run_events(self.log):
            if run.on_busy == "interrupt" and run.run_id not in seen:
                seen.add(run.run_id)
                found[run.session_id].append(run)
        return found

    @cached_property
    def rewritten(self) -> set[str]:
        """Sessions in which something was undone: their messages are fewer than what was said."""
        return {e.payload.id for e in self.log if isinstance(e.payload, Session) and e.payload.undone_from is not None}

    @cached_property
    def deleted(self) -> set[str]:
        return {e.payload.id for e in self.log if isinstance(e.payload, Session) and e.change == "deleted"}

    @cached_property
    def errors(self) -> dict[str, list[AgentEvent]]:
        found: dict[str, list[AgentEvent]] = defaultdict(list)
        for event in self.log:
            if isinstance(event.payload, AgentEvent) and event.payload.type == "error":
                found[event.payload.run_id].append(event.payload)
        return found

    @cached_property
    def requests(self) -> dict[str, PermissionRequest | QuestionRequest]:
        found = [e.payload for e in self.log if isinstance(e.payload, (PermissionRequest, QuestionRequest))]
        return {request.id: request for request in found}

    @cached_property
    def resolutions(self) -> dict[str, RequestResolution]:
        return {e.payload.id: e.payload for e in self.log if isinstance(e.payload, RequestResolution)}

    @cached_property
    def _places(self) -> tuple[list[float], list[int]]:
        fresh = [s for s in self.record.sent if s.asked.status == 202 and not s.replayed]
        fresh.sort(key=lambda sent: sent.asked.began)
        least, lowest = 2**62, list[int]()
        for sent in reversed(fresh):
            least = min(least, sent.seq)
            lowest.append(least)
        return [sent.asked.began for sent in fresh], lowest[::-1]

    def place_after(self, at: float) -> int:
        """A place in the log that is surely behind everything that was answered by then."""
        begun, lowest = self._places
        place = bisect.bisect_right(begun, at)
        return lowest[place] if place < len(lowest) else 2**62
