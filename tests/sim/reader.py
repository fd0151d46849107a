"""A client that follows the story: it reads, stalls, drops, comes back, and checks every frame it is shown.

What it knows at the end is what the contract promises it: every event once and in order, the text of every message
exactly, and each gap by name.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random

from kedge.engine.engine import Engine
from kedge.protocol.errors import StoreUnavailable
from kedge.protocol.events import CaughtUp, Connected, Event, Heartbeat, StreamReset
from kedge.protocol.messages import Delta, Message, MessageOf, text_in
from kedge.protocol.requests import PermissionRequest, QuestionRequest, RequestResolution
from kedge.protocol.runs import Run, RunEnd
from kedge.protocol.sessions import Session
from tests.sim.model import Model
from tests.support.invariants import is_finished
from tests.support.reader import cut_frames


class Reader:
    """`session_id` filters; an `is_attentive` reader never stalls, never drops, and so sees every delta."""

    def __init__(
        self,
        name: str,
        rng: Random,
        model: Model,
        floor: Callable[[], int],
        *,
        session_id: str | None = None,
        is_attentive: bool = False,
    ) -> None:
        self.name = name
        self.seq: int | None = None if not is_attentive else 0
        self.is_in_a_hurry = is_attentive
        self._floor = floor  # what retention removed
        self._rng = rng
        self._model = model
        self._session_id = session_id
        self._is_attentive = is_attentive
        self._log_id: str | None = None
        self._texts: dict[tuple[str, int], str] = {}
        self._shown: dict[tuple[str, int], list[tuple[float, int]]] = {}  # when how much of it was streamed
        self._finished: set[str] = set()
        self._asked: tuple[int | None, str | None] = (None, None)
        self._is_connected = False
        self._must_reset = False
        self._was_caught_up = False
        self._snapshots: set[str] = set()
        self._requests: set[str] = set()
        self._half = b""  # of a frame that was not shown to its end

    async def follow(self, engine: Engine, workspace_id: str) -> None:
        """Until the server goes away."""
        while True:
            began = self._model.now()
            after, log_id = self._choose_cursor()
            self._asked = (after, log_id)
            self._is_connected = self._was_caught_up = False
            self._snapshots, self._requests = set(), set()
            self._half = b""
            chunks = engine.subscribe(workspace_id, after=after, log_id=log_id, session_id=self._session_id)
            try:
                async for chunk in chunks:
                    self.take(chunk)
                    if await self._is_leaving():
                        break
                else:
                    return
            except StoreUnavailable:  # the log could not be read: it comes back with its cursor
                assert self._model.is_stopping or self._model.trouble_at >= began, f"{self.name} cannot read"
                if self._model.is_stopping:
                    return
            finally:
                await chunks.aclose()
            await asyncio.sleep(self._rng.choice((0, 0.01, 1, 20)))

    def _choose_cursor(self) -> tuple[int | None, str | None]:
        if self._is_attentive:
            return self.seq, self._log_id
        way = self._rng.choice(("cursor", "cursor", "cursor", "start", "head", "ahead", "other log"))
        match way:
            case "start":
                return 0, self._log_id
            case "head":
                return None, None
            case "ahead":
                return len(self._model.log) + self._rng.randint(50, 99), None
            case "other log":
                return self.seq, "another"
            case _:
                return self.seq, self._log_id

    async def _is_leaving(self) -> bool:
        if self._is_attentive or self.is_in_a_hurry:
            return False
        what = self._rng.random()
        if what < 0.05:
            return True
        if what < 0.15:
            await asyncio.sleep(self._rng.choice((0.1, 1, 30)))
        return False

    def take(self, chunk: bytes) -> None:
        frames, self._half = cut_frames(self._half + chunk)
        for raw, event in frames:
            assert self._is_connected or isinstance(event.payload, Connected), f"{self.name}: {event.type} came first"
            if event.seq is None:
                self._unlogged(event)
            else:
                self._logged(event, raw)

    def _unlogged(self, event: Event) -> None:
        match event.payload:
            case Connected() as told:
                self._connected(told)
            case StreamReset() as reset:
                self._reset(reset)
            case CaughtUp(seq):
                self._delivered(seq)
                self._caught_up(seq)
            case Heartbeat(head):
                self._delivered(head)
            case Delta() as delta:
                self._delta(delta)
            case MessageOf() as message:
                self._snapshots.add(message.id)
                self._message(message)
            case PermissionRequest() | QuestionRequest() as request:
                self._requests.add(request.id)
            case payload:
                raise AssertionError(f"{self.name}: {payload} has no seq")

    def _connected(self, told: Connected) -> None:
        assert not self._is_connected, f"{self.name}: connected twice"
        after, log_id = self._asked
        self._is_connected = True
        assert told.head <= len(self._model.log), f"{self.name}: the head {told.head} is not committed"
        assert told.after == (told.head if after is None else after), f"{self.name}: {told} after {after}"
        self._must_reset = (after is not None and log_id not in (None, told.log_id)) or told.after > told.head
        self._log_id = told.log_id
        if after is None or after != self.seq:
            self._forget()
        self.seq = told.after

    def _reset(self, reset: StreamReset) -> None:
        assert self.seq is not None
        after, log_id = self._asked
        self._model.seen_by_readers.add(f"reset for {reset.reason}")
        match reset.reason:
            case "other_log":
                assert log_id == "another", f"{self.name}: this is its log"
            case "ahead":
                assert after is not None, f"{self.name}: nobody is ahead"
                assert after > reset.head, f"{self.name}: {after} is not ahead of {reset.head}"
            case "retention":
                assert self.seq < self._floor(), f"{self.name}: {self.seq} is retained, above {self._floor()}"
        self._must_reset = False
        self._forget()
        self.seq = reset.head

    def _logged(self, event: Event, frame: bytes) -> None:
        seq = event.seq
        assert seq is not None
        assert self.seq is not None
        assert not self._must_reset, f"{self.name}: a cursor that cannot be served is served"
        assert seq <= len(self._model.log), f"{self.name}: event {seq} is shown before its commit"
        assert frame == self._model.frames[seq - 1], f"{self.name}: event {seq} is shown as {frame!r}"
        if self._session_id is not None:
            shown_in = session_of(event)
            assert shown_in == self._session_id, f"{self.name}: event {seq} is of session {shown_in}"
        assert seq > self.seq, f"{self.name}: event {seq} is shown again after {self.seq}"
        self._delivered(seq - 1)
        self.seq = seq
        if isinstance(event.payload, MessageOf):
            self._message(event.payload)
            if is_finished(event.payload):
                self._finished.add(event.payload.id)

    def _delivered(self, upto: int) -> None:
        """Everything up to `upto` was shown: nothing of ours lies between it and the newest that we saw."""
        assert self.seq is not None
        assert self.seq <= upto <= len(self._model.log), f"{self.name}: {upto} after {self.seq}"
        between = self._model.log[self.seq : upto]
        missed = [e.seq for e in between if self._session_id is None or session_of(e) == self._session_id]
        assert not missed, f"{self.name}: events {missed} are missing"
        self.seq = upto

    def _caught_up(self, seq: int) -> None:
        """P12, P14: what is open at this moment was told, all of it and nothing else."""
        assert not self._must_reset, f"{self.name}: a cursor that cannot be served is served"
        messages: dict[str, Message] = {}
        requests: set[str] = set()
        for event in self._model.log[:seq]:
            match event.payload:
                case MessageOf() as message:
                    messages[message.id] = message
                case PermissionRequest() | QuestionRequest() as request if self._sees(request.session_id):
                    requests.add(request.id)
                case RequestResolution() as resolution:
                    requests.discard(resolution.id)
                case _:
                    pass
        is_open = {m.id for m in messages.values() if not is_finished(m) and self._sees(m.session_id)}
        assert self._snapshots == is_open, f"{self.name} at {seq}: snapshots of {self._snapshots}, open are {is_open}"
        assert self._requests == requests, f"{self.name} at {seq}: requests {self._requests}, pending are {requests}"
        self._model.seen_by_readers |= {"snapshots"} if is_open else set()
        self._model.seen_by_readers |= {"pending requests"} if requests else set()
        self._model.seen_by_readers |= {"caught up again"} if self._was_caught_up else set()
        self._snapshots, self._requests = set(), set()
        self._was_caught_up = True

    def _message(self, message: Message) -> None:
        """A whole message, from the log or a snapshot: it only adds to what was shown before."""
        for index, part in enumerate(message.parts):
            known = self._texts.get((message.id, index), "")
            text = text_in(part)
            if not text.startswith(known):
                # Only a crash may take text back, and only the newest.
                kept_upto = self._model.lossy.get(message.id)
                shown = self._shown.get((message.id, index), [])
                kept = max((length for at, length in shown if kept_upto is not None and at <= kept_upto), default=0)
                is_kept = kept_upto is not None and text.startswith(known[:kept])
                assert is_kept, f"{self.name}: message {message.id} took text back: {known!r}, now {text!r}"
            self._texts[message.id, index] = text

    def _delta(self, delta: Delta) -> None:
        where = f"{self.name}: a delta of {delta.message_id} part {delta.part} at {delta.offset}"
        assert self._was_caught_up, f"{where} comes before caught_up"
        assert self._sees(delta.session_id), f"{where} is of another session"
        assert delta.message_id not in self._finished, f"{where} comes after the finish"
        known = self._texts.get((delta.message_id, delta.part), "")
        assert delta.offset <= len(known), f"{where} leaves a gap: {known!r} + {delta.text!r}"
        overlap = known[delta.offset :]
        assert delta.text.startswith(overlap) or overlap.startswith(delta.text), f"{where}: {known!r} + {delta.text!r}"
        text = self._texts[delta.message_id, delta.part] = known + delta.text[len(overlap) :]
        self._shown.setdefault((delta.message_id, delta.part), []).append((self._model.now(), len(text)))

    def _sees(self, session_id: str) -> bool:
        return self._session_id in (None, session_id)

    def _forget(self) -> None:
        """What was missed is re-read by other means: nothing is known of texts in flight."""
        self._texts.clear()
        self._finished.clear()


def session_of(event: Event) -> str:
    match event.payload:
        case Session() as session:
            return session.id
        case (
            Run(session_id=session_id)
            | RunEnd(session_id=session_id)
            | MessageOf(session_id=session_id)
            | PermissionRequest(session_id=session_id)
            | QuestionRequest(session_id=session_id)
            | RequestResolution(session_id=session_id)
        ):
            return session_id
        case payload:
            return getattr(payload, "session_id", "")
