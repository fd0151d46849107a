"""The wire of Anthropic Messages, from the server's side: the same plans become that wire's events."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from tests.support.model_plan import Plan
from tests.support.model_wire import Json, SentFrame, encoded, frame_of, malformed_frames, text_of

# The plans speak Chat's words.
_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use", "content_filter": "refusal"}


class AnthropicWire:
    def system(self, body: Json) -> str:
        return text_of(body.get("system", ""))

    def last_prompt(self, body: Json) -> str:
        prompts = [message for message in body["messages"] if _is_prompt(message)]
        return text_of(_texts(prompts[-1])) if prompts else ""

    def steps(self, body: Json) -> int:
        steps = 0
        for message in body["messages"]:
            steps = 0 if _is_prompt(message) else steps + (message["role"] == "assistant")
        return steps

    def frames(self, plan: Plan, model: str, call_id: str) -> Iterator[SentFrame]:
        if plan.malformed in ("empty", "done", "comments"):
            yield from _malformed(plan)
            return
        message: Json = {
            "id": f"msg-{call_id}",
            "type": "message",
            "role": "assistant",
            "model": model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {**_usage(plan), "output_tokens": 1},
        }
        yield _event(plan, "message_start", {"message": message})
        yield _event(plan, "ping", {})
        if plan.unknown:
            yield _event(plan, "message_unheard_of", {"delta": {"text": "not the answer"}})
        yield from _blocks(plan, call_id)
        if plan.malformed and plan.malformed not in ("no_done", "rest"):
            yield from _malformed(plan)
            return
        ended: Json = {"delta": {"stop_reason": _reason(plan), "stop_sequence": None}}
        yield _event(plan, "message_delta", {**ended, "usage": {"output_tokens": plan.output_count}})
        if plan.malformed == "rest":
            yield from _malformed(plan)
        if plan.malformed != "no_done":
            yield _event(plan, "message_stop", {})

    def whole(self, plan: Plan, model: str, call_id: str) -> Json:
        content: list[Json] = [{"type": "text", "text": "".join(plan.pieces())}]
        for i, call in enumerate(plan.tool_calls):
            known = {"id": plan.call_id(i, call_id), "name": call.name}
            content.append({"type": "tool_use", **known, "input": json.loads(call.arguments)})
        return {
            "id": f"msg-{call_id}",
            "type": "message",
            "role": "assistant",
            "model": model,
            "content": content,
            "stop_reason": _reason(plan),
            "stop_sequence": None,
            "usage": _usage(plan),
        }

    def error(self, plan: Plan) -> Json:
        return {"type": "error", "error": {"type": plan.error, "message": plan.message}, "request_id": "req-planned"}


def _blocks(plan: Plan, call_id: str) -> Iterator[SentFrame]:
    index = 0

    def start(at: int, block: Json) -> SentFrame:
        return _event(plan, "content_block_start", {"index": at, "content_block": block})

    def delta(at: int, **fields: Any) -> SentFrame:
        return _event(plan, "content_block_delta", {"index": at, "delta": fields}, is_delta=True)

    def stop(at: int) -> SentFrame:
        return _event(plan, "content_block_stop", {"index": at})

    if plan.unknown:
        yield start(index, {"type": "hologram", "text": "not the answer"})
        yield delta(index, type="hologram_delta", text="not the answer")
        yield stop(index)
        index += 1
    if plan.reasoning:
        yield start(index, {"type": "thinking", "thinking": "", "signature": ""})
        yield delta(index, type="thinking_delta", thinking=plan.reasoning)
        if plan.signature:
            yield delta(index, type="signature_delta", signature=plan.signature)
        yield stop(index)
        index += 1
    if plan.redacted:
        yield start(index, {"type": "redacted_thinking", "data": plan.redacted})
        yield stop(index)
        index += 1
    if any(plan.pieces()):
        yield start(index, {"type": "text", "text": ""})
        for piece in plan.pieces():
            yield delta(index, type="text_delta", text=piece)
        yield stop(index)
        index += 1
    opened: set[int] = set()
    for i, text in plan.input_pieces():
        if i not in opened:
            if opened and not plan.interleave:
                yield stop(index + max(opened))
            opened.add(i)
            name = plan.tool_calls[i].name
            yield start(index + i, {"type": "tool_use", "id": plan.call_id(i, call_id), "name": name, "input": {}})
            yield delta(index + i, type="input_json_delta", partial_json="")
        yield delta(index + i, type="input_json_delta", partial_json=text)
    for i in sorted(opened) if plan.interleave else sorted(opened)[-1:]:
        yield stop(index + i)


def _malformed(plan: Plan) -> Iterator[SentFrame]:
    event = b"event: content_block_delta\n"
    begun = event + b'data: {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "te'
    bad = {
        "json": begun + b"\n\n",
        "types": begun + b'xt": 42}}\n\n',
        "utf8": begun + b'xt": "\xf0\x9f"}}\n\n',
        "cut": begun + b'xt": "cut',
        "error": _event(plan, "error", AnthropicWire().error(plan)).data,
        "done": _event(plan, "message_stop", {}).data,
    }
    return malformed_frames(plan, bad)


def _event(plan: Plan, name: str, fields: Json, *, is_delta: bool = False) -> SentFrame:
    body: Json = {"type": name, **fields}
    if plan.unknown:
        body["x_new"] = {"deep": [1, None, {"text": "not the answer"}]}
    data = b"data: " + encoded(body, raw=plan.raw)
    return SentFrame(frame_of(plan, b"event: " + name.encode(), data), is_delta)


def _usage(plan: Plan) -> Json:
    if not plan.usage:
        return {"input_tokens": 0, "output_tokens": 0}
    return {
        "input_tokens": plan.input_tokens,
        "cache_creation_input_tokens": plan.cache_write_tokens,
        "cache_read_input_tokens": plan.cache_read_tokens,
        "output_tokens": plan.output_count,
        "service_tier": "standard",
    }


def _reason(plan: Plan) -> str:
    return _REASONS.get(plan.reason, plan.reason)


def _texts(message: Json) -> str | list[Json]:
    content = message["content"]
    return content if isinstance(content, str) else [block for block in content if block["type"] == "text"]


def _is_prompt(message: Json) -> bool:
    """A user's message with words; one of tool results alone is the agent's."""
    return message["role"] == "user" and bool(_texts(message))
