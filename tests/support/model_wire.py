"""What the wires of the scripted model server have in common: what a wire is, its frames, and bad ones."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, Protocol, cast

from tests.support.model_plan import Plan

Json = dict[str, Any]

IMAGES_NOTE = "[images of the tool results above]"  # of wires whose results take none: they follow as a user's


class SentFrame(NamedTuple):
    data: bytes
    is_delta: bool = False


class Wire(Protocol):
    """One way of speaking to models. Every method is pure."""

    def system(self, body: Json) -> str: ...
    def last_prompt(self, body: Json) -> str: ...
    def steps(self, body: Json) -> int: ...  # the answers since the last prompt
    def frames(self, plan: Plan, model: str, call_id: str) -> Iterator[SentFrame]: ...
    def whole(self, plan: Plan, model: str, call_id: str) -> Json: ...
    def error(self, plan: Plan) -> Json: ...


def malformed_frames(plan: Plan, bad: Mapping[str, bytes]) -> Iterator[SentFrame]:
    """What comes in place of the answer's end; `empty`, `done`, `comments`: in place of all of it; `rest`: after it.

    `bad` are the frames of a wire: `json`, `types`, `utf8`, `error`, `done`, `cut`.
    """
    match plan.malformed:
        case "comments":
            yield from [SentFrame(b": kept alive\n\n")] * 10
        case "no_finish" | "empty":
            pass
        case "rest":
            yield SentFrame(bad["json"])
        case kind if kind in bad:
            yield SentFrame(bad[kind])
        case unknown:
            raise ValueError(f"no way of being malformed is called {unknown!r}")


def data_frame(plan: Plan, body: Json) -> bytes:
    return frame_of(plan, b"data: " + encoded(body, raw=plan.raw))


def frame_of(plan: Plan, *lines: bytes) -> bytes:
    """A frame of these lines."""
    end = b"\r\n" if plan.crlf else b"\n"
    return b"".join(each + end for each in [*([b": kept alive"] if plan.comments else []), *lines, b""])


def encoded(body: Any, *, raw: bool = False) -> bytes:
    return json.dumps(body, ensure_ascii=not raw, separators=(",", ":")).encode()


def text_of(content: object) -> str:
    if isinstance(content, str):
        return content
    return " ".join(str(part.get("text", "")) for part in cast("list[Json]", content))
