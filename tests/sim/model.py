"""The reference model: what the contract allows, given what clients were told and what was committed.

It reads the log as it is committed (never the engine's memory) and hears of every call and its answer. What holds of
any log is in tests/support/invariants.py; here is what needs to know who asked for what, when, and what failed
meanwhile. Order is counted in ticks: a call that was answered before another began comes before it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, cast

import msgspec

from kedge.protocol.errors import Conflict, KedgeError, NotFound, SessionBusy, StoreUnavailable, TooMany, Unavailable
from kedge.protocol.events import Event
from kedge.protocol.files import Rewound
from kedge.protocol.messages import Message, MessageOf, Text
from kedge.protocol.requests import AnswerReceipt, PermissionRequest, QuestionRequest, RequestResolution
from kedge.protocol.runs import Receipt, Run, RunEnd, RunOptions, Submission
from kedge.protocol.sessions import Session
from tests.sim.turns import expected_text, said
from tests.sim.undos import Rewinds
from tests.support.invariants import is_finished, state_of

NEVER = 1 << 60
EPOCH = 1_700_000_000.0  # the time of day when a world begins
CANCEL_S = 5.0  # P6
AFTER_TROUBLE_S = 3.0  # a store that failed is asked again after at most 2 s
MAX_ATTEMPTS = 3
DRAFT_S = 1.0  # text in flight is saved every 0.25 s; here a transaction takes a while

_NAMES_A_RUN = ("answer", "drop", "cancel_run", "wait", "move", "promote", "mode", "revoke")

LifeEnd = Literal["", "crash", "orderly", "unclear"]


@dataclass(eq=False)
class Call:
    """One call of a client: `ended` is NEVER when it got no answer (then it may have happened, or not, or later)."""

    kind: str
    session_id: str = ""
    target: str = ""
    submission: Submission | None = None
    by: str = ""
    before: str | None = None
    on_busy: str = ""
    mode: str = ""
    began: int = 0
    began_at: float = 0.0
    ended: int = NEVER
    result: object = None
    error: KedgeError | None = None


@dataclass
class Model:
    now: Callable[[], float]
    log: list[Event] = field(default_factory=list[Event])
    frames: list[bytes] = field(default_factory=list[bytes])
    runs: dict[str, Run] = field(default_factory=dict[str, Run])
    ends: dict[str, RunEnd] = field(default_factory=dict[str, RunEnd])
    accepted_tick: dict[str, int] = field(default_factory=dict[str, int])
    ended_tick: dict[str, int] = field(default_factory=dict[str, int])
    joined: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    messages: dict[str, Message] = field(default_factory=dict[str, Message])
    pending: dict[str, PermissionRequest | QuestionRequest] = field(
        default_factory=dict[str, PermissionRequest | QuestionRequest]
    )
    answers: dict[str, RequestResolution] = field(default_factory=dict[str, RequestResolution])
    sessions: dict[str, Session] = field(default_factory=dict[str, Session])
    deleted: set[str] = field(default_factory=set[str])
    calls: list[Call] = field(default_factory=list[Call])
    returned: set[str] = field(default_factory=set[str])  # runs whose turn came to its end by itself
    lossy: dict[str, float] = field(default_factory=dict[str, float])  # messages cut by a crash: text kept up to when
    seen_by_readers: set[str] = field(default_factory=set[str])
    trouble_at: float = -1.0  # when the disk or the server last failed
    stopping_since: float | None = None
    _tick: int = 0
    _lives: list[LifeEnd] = field(default_factory=list[LifeEnd])
    _started_in: dict[str, int] = field(default_factory=dict[str, int])
    _created_at: dict[str, float] = field(default_factory=dict[str, float])
    _cancelled_at: dict[str, float] = field(default_factory=dict[str, float])

    def __post_init__(self) -> None:
        self.rewinds = Rewinds(self.messages, self.runs, self._is_busy, self._may_want)

    def tick(self) -> int:
        self._tick += 1
        return self._tick

    # What happens to the server.

    def booted(self) -> None:
        self._lives.append("")
        self.stopping_since = None

    def stopping(self) -> None:
        self.stopping_since = self.now()

    @property
    def is_stopping(self) -> bool:
        return self.stopping_since is not None

    def died(self, how: LifeEnd) -> None:
        """A stop that the disk or a crash disturbed may count as an attempt, or not."""
        if self.stopping_since is not None and (how == "crash" or self.trouble_at >= self.stopping_since):
            how = "unclear"
        self._lives[-1] = how
        if how != "orderly":
            for message in self.messages.values():
                if not is_finished(message):
                    is_safe = self.trouble_at < self._created_at[message.id]
                    self.lossy.setdefault(message.id, self.now() - DRAFT_S if is_safe else 0.0)
        self.trouble_at = self.now()

    # What is committed.

    def committed(self, event: Event, frame: bytes) -> None:
        assert event.seq == len(self.log) + 1, f"event {event.seq} was committed after {len(self.log)}"
        self.log.append(event)
        self.frames.append(frame)
        self.tick()
        self.rewinds.committed(event)
        match event.payload:
            case Run() as run:
                self._run(run)
            case RunEnd() as end:
                self._end(end)
            case MessageOf() as message:
                if event.change == "created" and not message.parts:
                    assert self.runs[message.run_id].waiting is None, f"{message.run_id} goes on while it waits"
                self._created_at.setdefault(message.id, self.now())
                self.messages[message.id] = message
                self._text(message)
            case PermissionRequest() | QuestionRequest() as request:
                self.pending[request.id] = request
            case RequestResolution() as resolution:
                self.pending.pop(resolution.id, None)
                self.answers[resolution.id] = resolution
            case Session() as session if event.change == "deleted":
                self.deleted.add(session.id)
                assert not self.open_runs(session.id), f"session {session.id} is deleted with open runs"
            case Session() as session:
                self.sessions[session.id] = session
            case _:
                pass

    def _run(self, run: Run) -> None:
        before = self.runs.get(run.run_id)
        self.runs[run.run_id] = run
        if before is None:
            self._accepted(run)
            return
        if run.state == "queued":
            self._arranged(before, run)
            return
        if run.mode != before.mode:
            self._switched(before, run)
            return
        if run.state != "running":
            assert run.waiting is None, f"{run.run_id} is {run.state} and waits"
            assert before.waiting is None or run.state == "cancelled", f"{run.run_id} {run.state} while it waited"
            return
        if run.merged_into is not None and before.merged_into is None:
            host = self.runs[run.merged_into]
            assert run.on_busy == "steer", f"{run.run_id} joined, but asked for {run.on_busy}"
            assert (host.state, host.cancel_requested) == ("running", False), f"{run.run_id} joined after the end"
            assert host.kind == run.kind, f"{run.run_id} is of another kind than its host"
            assert self._options(host) == self._options(run), f"{run.run_id} has other options than its host"
            assert host.mode == run.mode, f"{run.run_id} is in mode {run.mode}, and its host in {host.mode}"
            self.joined.setdefault(host.run_id, []).append(run.run_id)
        elif (
            run.waiting != before.waiting
            and self._started_in.get(run.merged_into or run.run_id) == len(self._lives) - 1
        ):
            self._waited(before, run)
        elif run.cancel_requested and not before.cancel_requested:
            self._cancelled_at[run.run_id] = self.now()
            assert self._cancellers(run), f"nobody cancelled {run.run_id}"
        else:
            self._started(before, run)

    def _accepted(self, run: Run) -> None:
        self.accepted_tick[run.run_id] = self._tick
        others = [other for other in self.open_runs(run.session_id) if other is not run]
        if run.on_busy == "interrupt":
            self._interrupts(run)
        if run.parent_run_id is not None:
            parent = self.runs[run.parent_run_id]
            assert run.mode == parent.mode, f"{run.run_id} is in mode {run.mode}, and its parent in {parent.mode}"
        assert run.on_busy != "reject" or not others, f"{run.run_id} was not rejected"
        assert run.parent_run_id or self._accepts(run.run_id), f"nobody sent {run.run_id}"

    def _arranged(self, before: Run, run: Run) -> None:
        """P5: only those who ask for it change the queue."""
        ours = [call for call in self.calls if call.session_id == run.session_id]
        promoted = [call.on_busy for call in ours if (call.kind, call.target) == ("promote", run.run_id)]
        if run.on_busy != before.on_busy:
            assert run.on_busy in promoted, f"nobody promoted {run.run_id}"
            if run.on_busy == "interrupt":
                self._interrupts(run)
        elif run.mode != before.mode and not promoted:
            self._switched(before, run)
        elif run.mode == before.mode:
            is_wanted = any(call.kind in ("move", "promote") for call in ours)
            assert is_wanted, f"nobody moved {run.run_id} from {before.place} to {run.place}"

    def _switched(self, before: Run, run: Run) -> None:
        """A mode is that of the whole turn, and somebody asked for it."""
        assert (run.state, run.attempt) == (before.state, before.attempt), f"{run.run_id} is switched and {run.state}"
        family = self._family(run)
        if run.state == "queued" and run.on_busy == "steer":  # it follows the turn that it is going to join
            family |= {
                name for each in self.runs.values() if each.session_id == run.session_id for name in self._family(each)
            }
        wanted = [call.mode for call in self.calls if call.kind == "mode" and call.target in family]
        assert run.mode in wanted, f"nobody switched {run.run_id} to {run.mode}"

    def _interrupts(self, run: Run) -> None:
        others = [other for other in self.open_runs(run.session_id) if other.run_id != run.run_id]
        missed = [other.run_id for other in others if other.state == "running" and not other.cancel_requested]
        assert not missed, f"{run.run_id} interrupts, and does not cancel {missed}"

    def _started(self, before: Run, run: Run) -> None:
        life = len(self._lives) - 1
        last_life = self._started_in.get(run.run_id)
        self._started_in[run.run_id] = life
        assert not run.cancel_requested, f"{run.run_id} is started although it was cancelled"
        if last_life is None:
            assert run.attempt == 1, f"{run.run_id} starts with attempt {run.attempt}"
            return
        assert last_life < life, f"{run.run_id} is started twice by one server"
        assert run.waiting == before.waiting, f"{run.run_id} waited for {before.waiting}, and now for {run.waiting}"
        counted = {"crash": {1}, "orderly": {0}}.get(self._lives[last_life], {0, 1})
        if before.waiting is not None:
            counted = {0}
        assert run.attempt - before.attempt in counted, (
            f"{run.run_id} goes on after {self._lives[last_life]}, from attempt {before.attempt} to {run.attempt}"
        )
        assert run.attempt <= MAX_ATTEMPTS, f"{run.run_id} is tried {run.attempt} times"

    def _waited(self, before: Run, run: Run) -> None:
        """P13: one wait at a time, never shorter than it was told."""
        assert run.attempt == before.attempt, f"{run.run_id} counts its wait as attempt {run.attempt}"
        assert not run.cancel_requested, f"{run.run_id} waits although it was cancelled"
        if before.waiting is None:
            assert any("limit" in self.runs[each].prompt for each in self.turn_of(run)), (
                f"{run.run_id} waits for nothing"
            )
        else:
            assert run.waiting is None, f"{run.run_id} waits anew without going on"
            early_s = before.waiting.until - EPOCH - self.now()
            assert early_s < 0.001, f"{run.run_id} goes on {early_s:.3f} s before the end of its wait"

    def _end(self, end: RunEnd) -> None:
        assert end.run_id not in self.ends, f"{end.run_id} ends twice"
        self.ends[end.run_id] = end
        self.ended_tick[end.run_id] = self._tick
        run = self.runs[end.run_id]
        turn = self.turn_of(run)
        host = self.runs[turn[0]]
        assert run.mode == host.mode, f"{run.run_id} is in mode {run.mode}, and its host in {host.mode}"
        match state_of(end):
            case "completed":
                assert host.run_id in self.returned, f"{end.run_id} completed before its turn did"
                if host.kind != "summarize":
                    wanted = expected_text([self.runs[run_id].prompt for run_id in turn])
                    assert end.text == wanted, f"{end.run_id} answers {end.text!r}, not {wanted!r}"
            case "failed":
                self._failed(end, turn)
            case _:
                assert self._cancellers(run), f"nobody cancelled {end.run_id}"
                is_dropped = end.message_id is None
                droppers = [call for call in self._cancellers(run) if call in ("clear", "drop")]
                assert not is_dropped or droppers, f"{end.run_id} has no message, but nobody dropped it"

    def _failed(self, end: RunEnd, turn: list[str]) -> None:
        error = end.error or ""
        match end.code:
            case "interrupted":
                run = self.runs[turn[0]]
                life_end = self._lives[self._started_in[run.run_id]]
                assert run.attempt == MAX_ATTEMPTS, f"{end.run_id} was given up after {run.attempt} attempts"
                assert life_end != "orderly", f"{end.run_id} was given up after an orderly stop"
            case "store_unavailable":
                assert self.trouble_at >= 0, f"{end.run_id} failed for a store that never did"
            case _:
                scripts = " ".join(self.runs[run_id].prompt for run_id in turn)
                known = (
                    error.split(" ")[-1] in scripts.split()
                    or error.endswith("SystemExit: 3")
                    or "not_found" in str(end.code)
                )
                assert known, f"{end.run_id} failed with what is not its own: {error}"

    def _text(self, message: Message) -> None:
        """P12: what is written is a slice_of, from its beginning, of what the turn said; never lost, never doubled."""
        run = self.runs.get(message.run_id)
        if run is None or message.role != "assistant" or message.summary:
            return
        texts = said([self.runs[run_id].prompt for run_id in self.turn_of(run)])
        for part in message.parts:
            if isinstance(part, Text):
                assert any(text.startswith(part.text) for text in texts), f"{message.id} says {part.text!r}: {texts}"

    # What clients are told.

    def asked(self, call: Call) -> None:
        call.began, call.began_at = self.tick(), self.now()
        self.calls.append(call)

    def answered(self, call: Call) -> None:
        call.ended = self.tick()
        if isinstance(call.error, StoreUnavailable):
            assert self.trouble_at >= call.began_at or self.is_stopping, (
                f"{call.kind} failed for a store that did not: {call.error}"
            )
        elif isinstance(call.error, Unavailable):
            assert self.is_stopping, f"{call.kind} was refused by a server that is not stopping"
        is_of_a_message = call.error is not None and call.error.code == "message_not_found"
        if isinstance(call.error, NotFound) and call.kind not in _NAMES_A_RUN:
            assert is_of_a_message or self._deletes(call.session_id), f"{call.kind}: {call.error}"
        match call.kind:
            case "accept":
                self._receipt(call)
            case "cancel_session" | "delete" if call.error is None:
                for run in self.open_runs(call.session_id):
                    is_later = self.accepted_tick[run.run_id] > call.began
                    assert is_later or run.cancel_requested, f"{call.kind} missed {run.run_id}"
            case "cancel_run" if call.error is None:
                is_ended, run = call.target in self.ends, self.runs[call.target]
                assert is_ended or run.cancel_requested, f"the cancel missed {call.target}"
            case "move" if call.error is None:
                self._moved(call)
            case "promote" if isinstance(call.result, Run):
                told = (call.result.run_id, call.result.on_busy)
                assert told == (call.target, call.on_busy), f"{call.target} was promoted, but {call.result}"
            case "mode" if isinstance(call.result, Run):
                assert call.result.mode == call.mode, f"{call.target} was switched to {call.mode}, not {call.result}"
            case "wait" if isinstance(call.result, RunEnd):
                is_told = call.result == self.ends[call.target] or call.session_id in self.deleted  # its text is gone
                assert is_told, f"{call.target} ended as {self.ends[call.target]}, not {call.result}"
            case "answer" if isinstance(call.result, AnswerReceipt):
                first = self.answers[call.target]
                told = (call.result.by, call.result.action)
                assert told == (first.by, first.action), f"{call.target}: {told}, but it was {first}"
                assert call.result.resolved == (first.by == call.by), f"{call.target} was answered twice"
            case "revoke" if call.error is None:
                assert call.target not in cast("list[str]", call.result), f"{call.target} was revoked, and still holds"
                assert self.answers[call.target].action == "allow_session", f"{call.target} was no grant"
            case "fork" if isinstance(call.result, Rewound):
                self.rewinds.forked(call.session_id, call.result.id, call.target)
            case _:
                pass

    def _moved(self, call: Call) -> None:
        """The queue that the caller is told has the prompt where it was wanted, in the order of the places."""
        queue = cast("list[Run]", call.result)
        ids = [run.run_id for run in queue]
        assert [run.run_id for run in sorted(queue, key=lambda run: run.queue_place)] == ids, f"{call.target}: {ids}"
        if call.before != call.target:
            wanted = len(ids) if call.before is None else ids.index(call.before)
            assert ids.index(call.target) + 1 == wanted, f"{call.target} was moved before {call.before}: {ids}"

    def _family(self, run: Run) -> set[str]:
        """The runs of its turn, of those above, and of all sub-agents below: they have one mode."""
        top = run
        while (above := top.merged_into or top.parent_run_id) is not None:
            top = self.runs[above]
        family = set(self.turn_of(top))
        for each in self.runs.values():  # in the order of acceptance: parents first
            if each.parent_run_id in family:
                family |= set(self.turn_of(each))
        return family

    def _receipt(self, call: Call) -> None:
        submission, others = call.submission, [c for c in self._accepts(call.target) if c is not call]
        assert submission is not None
        match call.error:
            case None:
                receipt = call.result
                assert isinstance(receipt, Receipt)
                run = self.runs.get(call.target)
                assert run is not None, f"{call.target} was acknowledged, and is not in the log"
                assert (receipt.seq, receipt.session_id) == (run.seq, run.session_id), f"{receipt} of {run}"
                on_busy = submission.on_busy if self._is_promoted(run) else run.on_busy
                same = (submission.prompt, submission.on_busy, submission.kind) == (run.prompt, on_busy, run.kind)
                assert same, f"{call.target} was acknowledged for another prompt"
                if not receipt.replayed:
                    again = [c for c in others if isinstance(c.result, Receipt) and not c.result.replayed]
                    assert not again, f"{call.target} was accepted twice"
                else:
                    assert others, f"{call.target} was never sent before"
            case SessionBusy() as error:
                assert submission.on_busy == "reject", f"{call.target} did not ask to be rejected"
                assert self.runs[error.active_run_id].session_id == call.session_id, f"busy with {error.active_run_id}"
                assert self.ended_tick.get(error.active_run_id, NEVER) > call.began, f"{call.target}: it was idle"
            case Conflict(code="session_busy"):
                family = self._ancestors(call.session_id)
                assert any(self._may_want(kind, each) for kind in ("undo", "redo") for each in family), (
                    f"{call.target} is refused for an undo that nobody wanted"
                )
            case Conflict():
                assert any(c.submission != submission for c in others), f"{call.target} conflicts with nothing"
            case NotFound() | TooMany() | Unavailable():
                pass
            case error:
                raise AssertionError(f"{call.target}: {error}")
        if call.error is not None and not others:
            assert call.target not in self.runs, f"{call.target} was refused, and is there"

    # At every step.

    def check_deadlines(self) -> None:
        """P6: the end is written within 5 s of the cancel, unless the store fails or the server stops."""
        for run_id, at in self._cancelled_at.items():
            if run_id in self.ends or self.is_stopping:
                continue
            limit = at + CANCEL_S if self.trouble_at < at else self.trouble_at + CANCEL_S + AFTER_TROUBLE_S
            assert self.now() <= limit, f"{run_id} was cancelled at {at:.2f} and has not ended at {self.now():.2f}"

    def open_runs(self, session_id: str | None = None) -> list[Run]:
        return [
            run for run in self.runs.values() if run.run_id not in self.ends and session_id in (None, run.session_id)
        ]

    def turn_of(self, run: Run) -> list[str]:
        host = run.merged_into or run.run_id
        return [host, *self.joined.get(host, [])]

    def _is_busy(self, session_id: str) -> bool:
        return any(session_id in self._ancestors(run.session_id) for run in self.open_runs())

    def _may_want(self, kind: str, session_id: str) -> bool:
        """Whether somebody called for it; a fork with its files is an undo of them."""
        kinds = (kind, "fork") if kind == "undo" else (kind,)
        return any(call.kind in kinds and call.session_id == session_id for call in self.calls)

    def _is_promoted(self, run: Run) -> bool:
        return any((call.kind, call.target) == ("promote", run.run_id) for call in self.calls)

    def _accepts(self, run_id: str) -> list[Call]:
        return [call for call in self.calls if call.kind == "accept" and call.target == run_id]

    def _options(self, run: Run) -> RunOptions | None:
        """Those that it was sent with, but for its mode; another body may have been sent, too, and refused."""
        sent = [call.submission for call in self._accepts(run.run_id) if call.submission is not None]
        options = next((each.options for each in sent if each.prompt == run.prompt), None)
        return options and msgspec.structs.replace(options, mode=None)

    def _deletes(self, session_id: str) -> bool:
        family = self._ancestors(session_id)
        return any(call.kind == "delete" and call.session_id in family for call in self.calls)

    def _ancestors(self, session_id: str | None) -> list[str]:
        """The session, and those that it is a sub-agent's of."""
        if session_id is None or session_id not in self.sessions:
            return []
        return [session_id, *self._ancestors(self.sessions[session_id].parent_session_id)]

    def _cancellers(self, run: Run) -> list[str]:
        """What may have cancelled the run: calls that were not answered before it was accepted, and its parent."""
        ids = self.turn_of(run)
        found = ["parent"] if run.parent_run_id is not None else []
        for call in self.calls:
            if call.ended < self.accepted_tick[run.run_id]:
                continue
            covers_run = call.kind in ("cancel_run", "drop") and call.target in ids
            covers_session = call.kind in ("cancel_session", "clear") and call.session_id == run.session_id
            deletes = call.kind == "delete" and call.session_id in self._ancestors(run.session_id)
            interrupts = call.submission is not None and call.submission.on_busy == "interrupt"
            interrupts = interrupts or (call.kind, call.on_busy) == ("promote", "interrupt")
            interrupts = interrupts and call.session_id == run.session_id and call.target not in ids
            if covers_run or covers_session or deletes or interrupts:
                found.append(call.kind)
        return found
