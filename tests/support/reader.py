"""A client of a workspace: follows streams frame by frame, and puts streamed text together as P12 says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import NamedTuple

from kedge.protocol.events import CaughtUp, Connected, Event, Heartbeat, StreamReset, decode_event
from kedge.protocol.messages import Delta, Message, MessageOf, ShellCommand, ToolResult, text_in

LIMIT_S = 30.0  # of every wait; generous, because the machine may be busy


class Frame(NamedTuple):
    raw: bytes
    event: Event


def cut_frames(data: bytes) -> tuple[list[Frame], bytes]:
    """The frames at the beginning of `data`, and what is there of the next one: a long snapshot comes in chunks."""
    whole, end, rest = data.rpartition(b"\n\n")
    return (split_frames(whole + end) if end else []), rest


def split_frames(chunk: bytes) -> list[Frame]:
    """The frames of a chunk that holds whole frames only."""
    assert chunk.endswith(b"\n\n"), f"a chunk ends in the middle of a frame: {chunk[-80:]!r}"
    return [_parse(raw + b"\n\n") for raw in chunk.split(b"\n\n")[:-1]]


def _parse(raw: bytes) -> Frame:
    fields = dict(line.split(b": ", 1) for line in raw.rstrip(b"\n").split(b"\n"))
    assert fields.keys() <= {b"id", b"data"}, f"not a frame: {raw!r}"
    event = decode_event(fields[b"data"])
    assert fields.get(b"id") == (None if event.seq is None else b"%d" % event.seq), f"id and seq differ: {raw!r}"
    return Frame(raw, event)


class Reader:
    """Everything that one client was told, over all its connections. `cursor` is where it would come back."""

    def __init__(self) -> None:
        self.frames: list[Frame] = []
        self.cursor = 0
        self.log_id: str | None = None
        self.texts: dict[str, dict[int, str]] = {}
        self._news = asyncio.Event()
        self._half = b""  # of a frame that was not shown to its end

    @property
    def log(self) -> list[Event]:
        return [frame.event for frame in self.frames if frame.event.seq is not None]

    @property
    def log_frames(self) -> list[bytes]:
        return [frame.raw for frame in self.frames if frame.event.seq is not None]

    @property
    def types(self) -> list[str]:
        return [frame.event.type for frame in self.frames]

    async def follow(self, stream: AsyncIterator[bytes]) -> None:
        """Until the stream ends."""
        async for chunk in stream:
            self.take(chunk)

    def take(self, chunk: bytes) -> None:
        """The next chunk of a stream, or the first of another one: the old one's last frame may have been cut."""
        half = b"" if chunk.startswith(b'data: {"type":"connected"') else self._half
        frames, self._half = cut_frames(half + chunk)
        for frame in frames:
            self.frames.append(frame)
            self._apply(frame.event)
        self._news.set()

    async def event(self, matches: Callable[[Event], bool]) -> Event:
        """The first event that matches, now or as soon as it was shown."""
        looked_at = 0
        async with asyncio.timeout(LIMIT_S):
            while True:
                for frame in self.frames[looked_at:]:
                    if matches(frame.event):
                        return frame.event
                looked_at = len(self.frames)
                self._news.clear()
                await self._news.wait()

    def _apply(self, event: Event) -> None:
        match event.payload:
            case Connected() as connected:
                self.log_id = connected.log_id
            case CaughtUp(seq) | Heartbeat(seq) | StreamReset(_, seq):
                self.cursor = seq
            case Delta() as delta:
                self._grow(delta)
            case MessageOf() as message:
                self._replace(message)
            case _:
                pass
        if event.seq is not None:
            assert event.seq > self.cursor, f"event {event.seq} comes again, after {self.cursor}"
            self.cursor = event.seq

    def _grow(self, delta: Delta) -> None:
        parts = self.texts.setdefault(delta.message_id, {})
        have = parts.get(delta.part, "")
        assert delta.offset <= len(have), f"a gap: {len(have)} characters are here, and this is {delta}"
        known = have[delta.offset : delta.offset + len(delta.text)]
        assert delta.text.startswith(known), f"text was taken back: {known!r}, now {delta.text!r}"
        parts[delta.part] = have + delta.text[len(known) :]

    def _replace(self, message: Message) -> None:
        parts = self.texts.setdefault(message.id, {})
        for index, part in enumerate(message.parts):
            text, have = text_in(part), parts.get(index, "")
            may_be_cut = isinstance(part, (ToolResult, ShellCommand))
            assert text.startswith(have) or may_be_cut, f"text was taken back: {have!r}, now {text!r}"
            parts[index] = text
