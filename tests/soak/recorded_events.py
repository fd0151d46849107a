"""A small record of a soak that kept every promise, built by hand: what is planted into it must be found."""

from __future__ import annotations

import dataclasses
from array import array
from collections import Counter
from typing import Any

import msgspec

from kedge.protocol.events import AgentEvent, Change, Event, Payload, encode, envelope
from kedge.protocol.messages import Finish, FinishReason, Message, MessageOf, Text, ToolCall, ToolResult
from kedge.protocol.requests import PermissionRequest, RequestResolution
from kedge.protocol.runs import Run, RunEnd, RunState, Usage
from kedge.protocol.sessions import Session
from tests.sim.reader import session_of
from tests.soak.record import (
    Asked,
    Body,
    Cancel,
    Command,
    Final,
    Life,
    Machine,
    Page,
    Reading,
    Record,
    Reply,
    Sample,
    Segment,
    Sent,
    Work,
    digest_of,
)
from tests.support.invariants import final_messages, is_finished

LOG_ID = "log"
CUT = 9  # where the readers dropped


class Teller:
    """Tells the log of runs, event by event."""

    def __init__(self) -> None:
        self.log: list[Event] = []
        self.runs: dict[str, Run] = {}
        self.answers: dict[str, Message] = {}

    def tell(self, type: str, payload: Payload, change: Change = "updated") -> int:
        seq = len(self.log) + 1
        self.log.append(Event(type, seq, change, payload))
        return seq

    def session(self, session_id: str, change: Change = "created") -> None:
        self.tell("session", Session(id=session_id, title=session_id, created_at=0, updated_at=0), change)

    def accept(self, run_id: str, session_id: str = "s1", **fields: object) -> None:
        given: dict[str, object] = {
            "run_id": run_id,
            "session_id": session_id,
            "kind": "prompt",
            "state": "queued",
            "prompt": run_id,
            "on_busy": "queue",
            "permissions": "allow",
            "model": None,
            "attempt": 0,
            "cancel_requested": False,
            "seq": len(self.log) + 1,
        }
        self.runs[run_id] = msgspec.convert({**given, **fields}, Run)
        self.tell("run", self.runs[run_id], "created")

    def change(self, run_id: str, **fields: object) -> None:
        run = self.runs[run_id] = msgspec.structs.replace(self.runs[run_id], **fields)
        self.tell("run", run)

    def start(self, run_id: str) -> None:
        self.change(run_id, state="running", attempt=1)
        run = self.runs[run_id]
        self.message(f"{run_id}-user", run, "user", [Text(run.prompt)])

    def message(self, id: str, run: Run, role: str, parts: list[object]) -> Message:
        told = {"id": id, "session_id": run.session_id, "run_id": run.run_id, "role": role, "created_at": 0.0}
        message = msgspec.convert({**told, "parts": msgspec.to_builtins(parts)}, Message)
        is_new = all(not isinstance(e.payload, MessageOf) or e.payload.id != id for e in self.log)
        self.tell("message", message, "created" if is_new else "updated")
        return message

    def say(self, run_id: str, text: str, reason: FinishReason = "end_turn") -> None:
        run, id = self.runs[run_id], f"{run_id}-answer"
        self.message(id, run, "assistant", [])
        self.answers[run_id] = self.message(id, run, "assistant", [Text(text), Finish(reason)])

    def end(self, run_id: str, state: str = "completed", error: str | None = None) -> None:
        run, said = self.runs[run_id], self.answers.get(run_id)
        if error is not None:
            told = AgentEvent(type="error", run_id=run_id, session_id=run.session_id, error=error, code="bad_request")
            self.tell("agent_event", told, "created")
        self.change(run_id, state=state)
        texts = [part.text for part in said.parts if isinstance(part, Text)] if said else []
        end = RunEnd(
            session_id=run.session_id,
            run_id=run_id,
            message_id=said.id if said else None,
            text="".join(texts),
            usage=Usage(),
            error=error,
            code="bad_request" if error else None,
            cancelled=state == "cancelled",
        )
        self.tell("run_complete", end, "created")

    def whole(self, run_id: str, session_id: str = "s1", text: str = "well") -> None:
        self.accept(run_id, session_id)
        self.start(run_id)
        self.say(run_id, text)
        self.end(run_id)


def told() -> list[Event]:
    """Two that wait for each other, one that asks, one that is cancelled, one that fails, and those of commands."""
    teller = Teller()
    teller.session("s1")
    teller.session("s2")
    teller.accept("r1")
    teller.accept("r2")
    teller.start("r1")
    teller.say("r1", "first")
    teller.end("r1")
    teller.start("r2")
    call = ToolCall("c1", "bash", "{}", True)
    teller.message("r2-call", teller.runs["r2"], "assistant", [call, Finish("tool_use")])
    asked: dict[str, Any] = {"id": "q1", "session_id": "s1", "run_id": "r2", "tool_call_id": "c1"}
    request = PermissionRequest(**asked, tool="bash", action="execute", description="run it", params={})
    teller.tell("permission_request", request, "created")
    teller.tell("permission_notification", RequestResolution(**asked, action="allow", by="a api"))
    teller.message("r2-result", teller.runs["r2"], "tool", [ToolResult("c1", "bash", "done", False)])
    teller.say("r2", "second")
    teller.end("r2")
    teller.accept("r3")
    teller.start("r3")
    teller.change("r3", cancel_requested=True)
    teller.say("r3", "half", "canceled")
    teller.end("r3", "cancelled")
    teller.accept("r4", "s2")
    teller.start("r4")
    teller.say("r4", "", "error")
    teller.end("r4", "failed", "no such thing")
    teller.whole("k1", "s2", "printed")
    teller.whole("k2", "s2")
    return teller.log


def renumbered(log: list[Event]) -> list[Event]:
    return [msgspec.structs.replace(event, seq=seq) for seq, event in enumerate(log, 1)]


def data_of(event: Event) -> bytes:
    assert event.change is not None
    return envelope(event.type, event.change, encode(event.payload), event.seq)


def record_of(log: list[Event]) -> Record:
    """As if this log had been told to everybody, and everything else had gone well."""
    digests = array("q", [digest_of(data_of(event)) for event in log])
    record = Record("w", "workspace", log_id=LOG_ID, log=log, digests=digests, paged=digests[:], stored=digests[:])
    accepted = {e.payload.run_id: e.payload for e in reversed(log) if isinstance(e.payload, Run)}
    for run in sorted(accepted.values(), key=lambda run: run.seq):
        body = Body(run.session_id, run.prompt, run.kind, run.on_busy, run.permissions, run.model)
        at = float(run.seq)
        if run.run_id.startswith("k"):
            record.sent.append(Sent(run.run_id, body, Asked(at, at + 0.5, None), by_command=True))
            continue
        sent = Sent(run.run_id, body, Asked(at, at + 0.5, 202), seq=run.seq, told=run.run_id)
        late = dataclasses.replace(sent, replayed=True, state="completed", asked=Asked(900, 901, 202))
        record.sent += [sent, late]
    record.works = {
        "r1": Work("r1", "completed", "first", mark="m1"),
        "r2": Work("r2", "completed", "second"),
        "r4": Work("r4", "failed"),
    }
    record.marks = Counter({"m1": 1})
    cancelled_at = accepted["r3"].seq + 0.6
    record.cancels = [Cancel("session", "s1", Asked(cancelled_at, cancelled_at + 0.1, 200), ("r3",))]
    record.ends_seen = {"r3": cancelled_at + 1}
    record.replies = [
        Reply("q1", "a api", "allow", Asked(5, 6, 200), True, "a api", "allow"),
        Reply("q1", "a phone", "deny", Asked(5, 6, 200), False, "a api", "allow"),
        Reply("nonsense", "a api", "allow", Asked(5, 6, 404, "request_not_found")),
    ]
    record.commands = [
        Command("k1", "s2", ("run",), 0, "printed\n", ""),
        Command("k2", "s2", ("run", "--detach"), 0, "k2\n", ""),
    ]
    record.readings = [
        reading("keeper", log, digests, is_faithful=True),
        reading("of a session", log, digests, session_id="s1"),
        Reading("ahead", segments=[Segment(10**6, LOG_ID, 10**6, len(log), LOG_ID, reset=("ahead", len(log)))]),
    ]
    record.readings[0].stalls, record.readings[0].texts = 1, 3
    pages = [page(log, "s1", CUT), page(log, "s1", len(log))]
    record.pages = pages[:1]
    states: dict[str, RunState] = {e.payload.run_id: e.payload.state for e in log if isinstance(e.payload, Run)}
    record.final = Final(
        sessions=["s1", "s2"],
        pages=pages[1:],
        runs=states.copy(),
        stored_runs={run_id: (state, 1) for run_id, state in states.items()},
    )
    record.lives = [Life(0, 500, "killed", -9), Life(500, 1000, "told to leave", 0, told_at=999)]
    record.refused = [Asked(999.1, 999.2, 503, "shutting_down", has_retry_after=True)]
    return record


def reading(
    name: str, log: list[Event], digests: array[int], *, session_id: str | None = None, is_faithful: bool = False
) -> Reading:
    """Two connections: the first was dropped in the middle."""
    segments: list[Segment] = []
    for low, high in ((0, CUT), (CUT, len(log))):
        mine = [e for e in log[low:high] if session_id is None or session_of(e) == session_id]
        segment = Segment(low, None if low == 0 else LOG_ID, low, len(log), LOG_ID)
        segment.seqs = array("q", [event.seq or 0 for event in mine])
        segment.digests = array("q", [digests[low:high][log[low:high].index(event)] for event in mine])
        segment.delivered = [(len(mine), high)]
        segments.append(segment)
    return Reading(name, session_id, is_faithful, segments)


def page(log: list[Event], session_id: str, upto: int) -> Page:
    messages = [m for m in final_messages(log[:upto]).values() if m.session_id == session_id]
    finished = tuple((m.id, digest_of(encode(m))) for m in messages if is_finished(m))
    return Page(session_id, upto, finished, tuple(m.id for m in messages))


def machine() -> Machine:
    mib = 1024 * 1024
    samples = [Sample(float(at), 0, 90 * mib, 60, 20, 4 * mib) for at in range(600)]
    return Machine(samples, database_bytes=3 * mib, content_bytes=mib, events=100)
