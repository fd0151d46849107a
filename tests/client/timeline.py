"""A server's story in plain data, which can be heard from any moment on: for tests of the client without a network.

A `Timeline` is what happens, one thing after the other. `heard` gives the bytes of a stream that was opened at some
moment: what the log has after the cursor, snapshots of what is being written, and then everything that comes.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

RUN = "run-1"
SESSION = "session-1"
LOG = "log-1"


class Said(NamedTuple):
    """A message of the assistant: its pieces for each text part, and how it is finished."""

    parts: Sequence[Sequence[str]]
    reason: str = "end_turn"
    summary: bool = False
    run_id: str = RUN
    reasoning: str = ""

    @property
    def text(self) -> str:
        return "".join("".join(pieces) for pieces in self.parts)


class Happening(NamedTuple):
    frame: bytes
    seq: int | None
    open_after: dict[str, dict[str, Any]]  # messages being written once this has happened


class Timeline:
    def __init__(self) -> None:
        self.happened: list[Happening] = []
        self.head = 0
        self._open: dict[str, dict[str, Any]] = {}
        self._ids = 0

    @classmethod
    def of(cls, *said: Said, error: str | None = None, cancelled: bool = False) -> Timeline:
        """A whole run: accepted, started, everything that is said, its end."""
        timeline = cls()
        timeline.log("run", {"run_id": RUN, "state": "queued"})
        timeline.log("run", {"run_id": RUN, "state": "running"}, "updated")
        ids = [(message, timeline.say(message)) for message in said]
        answers = [pair for pair in ids if _is_answer(pair[0])]
        last = answers[-1] if answers else None
        end: dict[str, Any] = {
            "session_id": SESSION,
            "run_id": RUN,
            "message_id": last[1] if last else None,
            "text": last[0].text if last else "",
            "usage": {"input_tokens": 3, "output_tokens": 5},
        }
        if error is not None:
            end["error"] = error
        if cancelled:
            end["cancelled"] = True
        timeline.log("run_complete", end)
        return timeline

    def say(self, said: Said) -> str:
        """A message, streamed; each part is committed when it is finished, the last one together with the finish."""
        self._ids += 1
        message_id = f"message-{self._ids}"
        message: dict[str, Any] = {
            "id": message_id,
            "session_id": SESSION,
            "run_id": said.run_id,
            "role": "assistant",
            "parts": [],
        }
        if said.summary:
            message["summary"] = True
        self._open[message_id] = {**message, "parts": []}
        self.log("message", message)
        streams = [("reasoning", [said.reasoning])] if said.reasoning else []
        streams += [("text", list(pieces)) for pieces in said.parts]
        done: list[dict[str, Any]] = []
        for index, (kind, pieces) in enumerate(streams):
            text = ""
            for piece in pieces:
                self._open[message_id] = {**message, "parts": [*done, {"type": kind, "text": text + piece}]}
                self.delta(message, index, kind, len(text), piece)
                text += piece
            done.append({"type": kind, "text": text})
            if index < len(streams) - 1:
                self._open[message_id] = {**message, "parts": list(done)}
                self.log("message", {**message, "parts": list(done)}, "updated")
        del self._open[message_id]
        self.log("message", {**message, "parts": [*done, {"type": "finish", "reason": said.reason}]}, "updated")
        return message_id

    def log(self, type: str, payload: dict[str, Any], change: str = "created") -> None:
        self.head += 1
        envelope = {"type": type, "seq": self.head, "payload": {"type": change, "payload": payload}}
        self._add(b"id: %d\n%b" % (self.head, data(envelope)), self.head)

    def delta(self, message: dict[str, Any], part: int, kind: str, offset: int, text: str) -> None:
        payload = {
            "message_id": message["id"],
            "session_id": SESSION,
            "run_id": message["run_id"],
            "part": part,
            "kind": kind,
            "offset": offset,
            "text": text,
        }
        self._add(data({"type": "message_delta", "payload": {"type": "created", "payload": payload}}), None)

    def frames(self, opened_at: int, after: int | None) -> list[bytes]:
        """The frames of a stream opened when `opened_at` things had happened, to the end of the story."""
        past = self.happened[:opened_at]
        head = max((h.seq for h in past if h.seq is not None), default=0)
        cursor = head if after is None else after
        replay = [h.frame for h in past if h.seq is not None and h.seq > cursor]
        unfinished = list(past[-1].open_after.values()) if past else []
        return [
            control("connected", {"log_id": LOG, "head": head, "after": cursor}),
            *replay,
            *(data({"type": "message", "payload": {"type": "updated", "payload": m}}) for m in unfinished),
            control("caught_up", {"seq": head}),
            *(h.frame for h in self.happened[opened_at:]),
        ]

    def heard(self, opened_at: int, after: int | None) -> bytes:
        return b"".join(self.frames(opened_at, after))

    def moment_at(self, opened_at: int, after: int | None, cut: int) -> int:
        """How many things had happened when byte `cut` of such a stream was sent."""
        live = self.happened[opened_at:]
        sent = len(self.heard(opened_at, after)) - sum(len(h.frame) for h in live)
        moment = opened_at
        for h in live:
            sent += len(h.frame)
            if sent > cut:
                break
            moment += 1
        return moment

    def _add(self, frame: bytes, seq: int | None) -> None:
        self.happened.append(Happening(frame, seq, dict(self._open)))


def control(type: str, payload: dict[str, Any]) -> bytes:
    return data({"type": type, "payload": payload})


def data(envelope: dict[str, Any]) -> bytes:
    return b"data: %b\n\n" % json.dumps(envelope, ensure_ascii=False).encode()


def _is_answer(said: Said) -> bool:
    return said.run_id == RUN and not said.summary and said.reason != "interrupted"
