"""The wire of Chat Completions, from the server's side: plans become frames, good ones and bad ones."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol, cast

from tests.support.model_plan import Plan

Json = dict[str, Any]


class SentFrame(NamedTuple):
    data: bytes
    is_delta: bool = False


class Wire(Protocol):
    """One way of speaking to models. Every method is pure."""

    def last_prompt(self, body: Json) -> str: ...
    def frames(self, plan: Plan, model: str, call_id: str) -> Iterator[SentFrame]: ...
    def whole(self, plan: Plan, model: str, call_id: str) -> Json: ...
    def error(self, plan: Plan) -> Json: ...


class ChatWire:
    def last_prompt(self, body: Json) -> str:
        users = [message for message in body["messages"] if message["role"] == "user"]
        return _text(users[-1]["content"]) if users else ""

    def frames(self, plan: Plan, model: str, call_id: str) -> Iterator[SentFrame]:
        """What is sent for a plan; each delta counts for the plan's places."""

        def chunk(delta: Json, finish: str | None = None, *, is_delta: bool = False) -> SentFrame:
            choice = {"index": 0, "delta": delta, "finish_reason": finish, "logprobs": None}
            body = {"id": call_id, "object": "chat.completion.chunk", "created": 1, "model": model, "choices": [choice]}
            return SentFrame(_data(plan, body), is_delta)

        if plan.malformed in ("empty", "done", "comments"):
            yield from malformed_frames(plan)
            return
        yield chunk({"role": "assistant", "content": ""})
        if plan.reasoning:
            yield chunk({"reasoning_content": plan.reasoning}, is_delta=True)
        for piece in plan.pieces():
            yield chunk({"content": piece}, is_delta=True)
        if plan.malformed and plan.malformed not in ("no_done", "rest"):
            yield from malformed_frames(plan)
            return
        yield chunk({}, plan.finish)
        if plan.malformed == "rest":
            yield from malformed_frames(plan)
        if plan.usage:
            usage = {"prompt_tokens": 10, "completion_tokens": len(plan.pieces()), "total_tokens": 11}
            yield SentFrame(_data(plan, {"id": call_id, "choices": [], "usage": usage}))
        if plan.malformed != "no_done":
            yield SentFrame(_line(plan, b"data: [DONE]"))

    def whole(self, plan: Plan, model: str, call_id: str) -> Json:
        message = {"role": "assistant", "content": "".join(plan.pieces())}
        choice = {"index": 0, "message": message, "finish_reason": plan.finish}
        usage = {"prompt_tokens": 10, "completion_tokens": 1, "total_tokens": 11}
        return {"id": call_id, "object": "chat.completion", "model": model, "choices": [choice], "usage": usage}

    def error(self, plan: Plan) -> Json:
        return {"error": {"message": plan.message, "type": plan.error, "code": plan.error, "param": None}}


def malformed_frames(plan: Plan) -> Iterator[SentFrame]:
    """What comes in place of the answer's end; `empty`, `done`, `comments`: in place of all of it; `rest`: after it."""
    match plan.malformed:
        case "json" | "rest":
            yield SentFrame(b'data: {"choices": [{"index": 0, "delta": {"conte\n\n')
        case "types":
            yield SentFrame(b'data: {"choices": [{"index": 0, "delta": {"content": 42}}]}\n\n')
        case "utf8":
            yield SentFrame(b'data: {"choices": [{"index": 0, "delta": {"content": "\xf0\x9f"}}]}\n\n')
        case "error":
            yield SentFrame(_data(plan, ChatWire().error(plan)))
        case "done":
            yield SentFrame(b"data: [DONE]\n\n")
        case "cut":
            yield SentFrame(b'data: {"choices": [{"index": 0, "delta": {"content": "cut')
        case "comments":
            yield from [SentFrame(b": kept alive\n\n")] * 10
        case "no_finish" | "empty":
            pass
        case unknown:
            raise ValueError(f"no way of being malformed is called {unknown!r}")


def _data(plan: Plan, body: Json) -> bytes:
    return _line(plan, b"data: " + encoded(body, raw=plan.raw))


def encoded(body: Any, *, raw: bool = False) -> bytes:
    return json.dumps(body, ensure_ascii=not raw, separators=(",", ":")).encode()


def _line(plan: Plan, line: bytes) -> bytes:
    lines = [b": kept alive", line] if plan.comments else [line]
    end = b"\r\n" if plan.crlf else b"\n"
    return b"".join(line + end for line in [*lines, b""])


def _text(content: object) -> str:
    if isinstance(content, str):
        return content
    return " ".join(str(part.get("text", "")) for part in cast("list[Json]", content))
