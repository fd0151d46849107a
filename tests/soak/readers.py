"""Subscribers of a soak: one stays, others drop at any byte, stall, vanish, ask too much, or see one session."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from random import Random
from urllib.parse import urlencode

from kedge.protocol.events import CaughtUp, Connected, Event, Heartbeat, StreamReset
from kedge.protocol.messages import Delta, Message, MessageOf, ShellCommand, ToolResult, finish_of, text_in
from tests.soak.record import Reading, Segment, digest_of
from tests.soak.server import SoakServer
from tests.support.invariants import is_finished
from tests.support.reader import Frame, cut_frames

STALL_S = (0.5, 2.0, 6.0)


class Subscriber:
    """Follows a workspace until it is cancelled. Without `restlessness` it never leaves by itself."""

    def __init__(
        self,
        server: SoakServer,
        workspace: str,
        reading: Reading,
        rng: Random,
        *,
        restlessness: float = 0.0,
        on_event: Callable[[Event], None] | None = None,
    ) -> None:
        self.reading = reading
        self._server = server
        self._workspace = workspace
        self._rng = rng
        self._restlessness = restlessness
        self._on_event = on_event
        self._log_id: str | None = None
        self._cursor: int | None = 0 if reading.is_faithful else None
        self._texts = Texts(reading)
        self._last_life = -1
        self._news = asyncio.Event()

    @property
    def cursor(self) -> int:
        return self._cursor or 0

    async def follow(self) -> None:
        while True:
            await self._server.up.wait()
            await self._connection()
            await asyncio.sleep(self._rng.choice((0, 0.05, 0.5)) if self._restlessness else 0.02)

    async def until(self, seq: int) -> None:
        """Once all up to there was shown."""
        while self.cursor < seq:
            self._news.clear()
            await self._news.wait()

    def calm_down(self) -> None:
        """From here on it stays."""
        self._restlessness = 0.0

    async def _connection(self) -> None:
        after, log_id, headers = self._ask()
        segment = Segment(after, log_id)
        if self._server.life != self._last_life:
            self._texts.doubt()
            self._last_life = self._server.life
        query = {"after": after, "log_id": log_id, "session_id": self.reading.session_id}
        if headers:
            del query["after"]
        wanted = urlencode({name: value for name, value in query.items() if value is not None})
        allowed = self._rng.expovariate(1 / 40_000) if self._rng.random() < self._restlessness else None
        half = b""
        stream = self._server.wire.stream(f"{self._workspace}/events?{wanted}", headers)
        try:
            async with contextlib.aclosing(stream):
                async for piece in stream:
                    if allowed is not None and len(piece) >= allowed:  # it goes away in the middle of whatever this is
                        half = self._take(segment, half + piece[: int(allowed)])
                        return
                    allowed = None if allowed is None else allowed - len(piece)
                    half = self._take(segment, half + piece)
                    if self._rng.random() < self._restlessness * 0.02:
                        self.reading.stalls += 1
                        await asyncio.sleep(self._rng.choice(STALL_S))
        finally:
            if segment.told_after is not None:
                self.reading.segments.append(segment)
                self._cursor, self._log_id = segment.cursor, segment.told_log_id

    def _ask(self) -> tuple[int | None, str | None, dict[str, str]]:
        if self.reading.is_faithful or self._cursor is None or self._rng.random() < 0.9:
            by_header = self._cursor is not None and self._rng.random() < 0.5
            return self._cursor, self._log_id, {"Last-Event-ID": str(self._cursor)} if by_header else {}
        self._texts.forget()
        match self._rng.choice(("start", "head", "ahead", "other log")):
            case "start":
                return 0, self._log_id, {}
            case "head":
                return None, None, {}
            case "ahead":
                return 10**9 + self._rng.randrange(10**6), self._log_id, {}
            case _:
                return self._cursor, "another", {}

    def _take(self, segment: Segment, data: bytes) -> bytes:
        frames, half = cut_frames(data)
        for frame in frames:
            self._shown(segment, frame)
        if frames:
            if segment.told_after is not None:
                self._cursor = segment.cursor
            self._news.set()
        return half

    def _shown(self, segment: Segment, frame: Frame) -> None:
        event = frame.event
        if event.seq is not None:
            segment.seqs.append(event.seq)
            segment.digests.append(digest_of(envelope_of(frame.raw)))
        match event.payload:
            case Connected() as told:
                segment.told_after, segment.told_head, segment.told_log_id = told.after, told.head, told.log_id
            case StreamReset() as reset:
                segment.reset = (reset.reason, reset.head)
                self._texts.forget()
            case CaughtUp(seq) | Heartbeat(seq):
                segment.delivered.append((len(segment.seqs), seq))
            case Delta() as delta:
                self._texts.grow(delta)
            case MessageOf() as message:
                self._texts.whole(message, is_logged=event.seq is not None)
            case _:
                pass
        if self._on_event is not None:
            self._on_event(event)


class Texts:
    """P12: what the pieces add up to is what the log has. A killed server may have lost the newest of them, no more."""

    def __init__(self, reading: Reading) -> None:
        self._reading = reading
        self._parts: dict[str, dict[int, str]] = {}
        self._doubted: set[tuple[str, int]] = set()
        self._finished: set[str] = set()

    def doubt(self) -> None:
        """Another server: what was shown of an unfinished message may be longer than what was stored."""
        self._doubted = {(message_id, part) for message_id, parts in self._parts.items() for part in parts}

    def forget(self) -> None:
        self._parts.clear()

    def grow(self, delta: Delta) -> None:
        where = f"{self._reading.name}: message {delta.message_id} part {delta.part} at {delta.offset}"
        if delta.message_id in self._finished:
            self._wrong(f"{where}: a piece after the finish")
            return
        parts = self._parts.setdefault(delta.message_id, {})
        have = parts.get(delta.part, "")
        if delta.offset > len(have):
            self._wrong(f"{where}: a gap after {len(have)} characters")
            return
        known = have[delta.offset : delta.offset + len(delta.text)]
        if not delta.text.startswith(known):
            self._wrong(f"{where}: {known[:80]!r} became {delta.text[:80]!r}")
        parts[delta.part] = have + delta.text[len(known) :]

    def whole(self, message: Message, *, is_logged: bool) -> None:
        known = self._parts.setdefault(message.id, {})
        for index, part in enumerate(message.parts):
            text, have = text_in(part), known.get(index, "")
            is_doubted = (message.id, index) in self._doubted
            self._doubted.discard((message.id, index))
            is_same = text.startswith(have) or (is_doubted and have.startswith(text))
            if not is_same and not isinstance(part, (ToolResult, ShellCommand)):  # a command's output may be cut
                where = f"{self._reading.name}: message {message.id} of {message.run_id} part {index}"
                self._wrong(f"{where}: {have[-80:]!r} became {text[-80:]!r}, {finish_of(message.parts)}")
            elif have and is_logged:
                self._reading.texts += 1
            known[index] = text
        if is_logged and is_finished(message):
            self._parts.pop(message.id, None)
            self._finished.add(message.id)

    def _wrong(self, what: str) -> None:
        self._reading.wrong_texts.append(what)


def envelope_of(raw: bytes) -> bytes:
    """What a frame and the log have in common, byte for byte."""
    return raw[raw.index(b"data: ") + 6 :].rstrip(b"\n")
