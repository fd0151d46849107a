"""The wire of Chat Completions, from the server's side: plans become frames, good ones and bad ones."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol, cast

from tests.support.model_plan import Plan

Json = dict[str, Any]

IMAGES_NOTE = "[images of the tool results above]"


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


class ChatWire:
    def system(self, body: Json) -> str:
        return " ".join(
            text_of(each["content"]) for each in body["messages"] if each["role"] in ("system", "developer")
        )

    def last_prompt(self, body: Json) -> str:
        prompts = [message for message in body["messages"] if _is_prompt(message)]
        return text_of(prompts[-1]["content"]) if prompts else ""

    def steps(self, body: Json) -> int:
        steps = 0
        for message in body["messages"]:
            steps = 0 if _is_prompt(message) else steps + (message["role"] == "assistant")
        return steps

    def frames(self, plan: Plan, model: str, call_id: str) -> Iterator[SentFrame]:
        """What is sent for a plan; each delta counts for the plan's places."""

        def chunk(delta: Json, finish: str | None = None, *, is_delta: bool = False) -> SentFrame:
            choice: Json = {"index": 0, "delta": delta, "finish_reason": finish, "logprobs": None}
            body: Json = {
                "id": call_id,
                "object": "chat.completion.chunk",
                "created": 1,
                "model": model,
                "choices": [choice],
            }
            if plan.unknown:
                choice["unheard"] = body["x_new"] = {"deep": [1, None, {"text": "not the answer"}]}
                delta["unheard"] = {"text": "not the answer"}
            return SentFrame(_data(plan, body), is_delta)

        if plan.malformed in ("empty", "done", "comments"):
            yield from malformed_frames(plan)
            return
        yield chunk({"role": "assistant", "content": ""})
        if plan.reasoning:
            yield chunk({"reasoning_content": plan.reasoning}, is_delta=True)
        for piece in plan.pieces():
            yield chunk({"refusal" if plan.refusal else "content": piece}, is_delta=True)
        for pieces in _call_pieces(plan, call_id):
            yield chunk({"tool_calls": pieces}, is_delta=True)
        if plan.malformed and plan.malformed not in ("no_done", "rest"):
            yield from malformed_frames(plan)
            return
        yield chunk({}, plan.reason)
        if plan.malformed == "rest":
            yield from malformed_frames(plan)
        if plan.usage:
            told: Json = {"id": call_id, "object": "chat.completion.chunk", "created": 1, "model": model, "choices": []}
            yield SentFrame(_data(plan, {**told, "usage": _usage(plan)}))
        if plan.malformed != "no_done":
            yield SentFrame(frame_of(plan, b"data: [DONE]"))

    def whole(self, plan: Plan, model: str, call_id: str) -> Json:
        message: Json = {"role": "assistant", "content": "".join(plan.pieces())}
        if plan.tool_calls:
            message["tool_calls"] = [
                {
                    "id": plan.call_id(i, call_id),
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments},
                }
                for i, call in enumerate(plan.tool_calls)
            ]
        choice = {"index": 0, "message": message, "finish_reason": plan.reason}
        return {"id": call_id, "object": "chat.completion", "model": model, "choices": [choice], "usage": _usage(plan)}

    def error(self, plan: Plan) -> Json:
        return {"error": {"message": plan.message, "type": plan.error, "code": plan.error, "param": None}}


def _call_pieces(plan: Plan, call_id: str) -> Iterator[list[Json]]:
    """The `tool_calls` of each delta: as the standard has them, or as some servers do."""

    def piece(i: int, arguments: str, *, is_first: bool) -> Json:
        told: Json = {"index": i, "function": {"arguments": arguments}}
        if is_first:
            told |= {"id": plan.call_id(i, call_id), "type": "function"}
            told["function"]["name"] = plan.tool_calls[i].name
        match plan.call_style:
            case "empty_id" if not is_first:
                told |= {"id": "", "type": "function"}
                told["function"]["name"] = ""
            case "no_id":
                told.pop("id", None)
            case "no_index":
                del told["index"]
            case "same_index":
                told["index"] = 0
            case _:
                pass
        return told

    if plan.call_style in ("whole", "no_index", "same_index"):  # each call at once
        calls = [piece(i, call.arguments, is_first=True) for i, call in enumerate(plan.tool_calls)]
        yield from [calls] if plan.call_style == "whole" and calls else [[call] for call in calls]
        return
    seen: set[int] = set()
    for i, text in plan.input_pieces():
        if i not in seen:
            yield [piece(i, "", is_first=True)]
        seen.add(i)
        yield [piece(i, text, is_first=False)]


def _usage(plan: Plan) -> Json:
    prompt = plan.input_tokens + plan.cache_read_tokens
    usage: Json = {
        "prompt_tokens": prompt,
        "completion_tokens": plan.output_count,
        "total_tokens": prompt + plan.output_count,
    }
    if plan.cache_read_tokens:
        usage["prompt_tokens_details"] = {"cached_tokens": plan.cache_read_tokens}
    return usage


def _is_prompt(message: Json) -> bool:
    """Chat's tool results take no images: they follow as a user's, with a note."""
    return message["role"] == "user" and not text_of(message["content"]).startswith(IMAGES_NOTE)


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
    return frame_of(plan, b"data: " + encoded(body, raw=plan.raw))


def encoded(body: Any, *, raw: bool = False) -> bytes:
    return json.dumps(body, ensure_ascii=not raw, separators=(",", ":")).encode()


def frame_of(plan: Plan, *lines: bytes) -> bytes:
    """A frame of these lines."""
    end = b"\r\n" if plan.crlf else b"\n"
    return b"".join(each + end for each in [*([b": kept alive"] if plan.comments else []), *lines, b""])


def text_of(content: object) -> str:
    if isinstance(content, str):
        return content
    return " ".join(str(part.get("text", "")) for part in cast("list[Json]", content))
