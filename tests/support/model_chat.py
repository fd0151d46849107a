"""The wire of Chat Completions, from the server's side: plans become frames, good ones and bad ones."""

from __future__ import annotations

from collections.abc import Iterator

from tests.support.model_plan import Plan
from tests.support.model_wire import IMAGES_NOTE, Json, SentFrame, data_frame, frame_of, malformed_frames, text_of


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
            return SentFrame(data_frame(plan, body), is_delta)

        if plan.malformed in ("empty", "done", "comments"):
            yield from _malformed(plan)
            return
        yield chunk({"role": "assistant", "content": ""})
        if plan.reasoning:
            yield chunk({"reasoning_content": plan.reasoning}, is_delta=True)
        for piece in plan.pieces():
            yield chunk({"refusal" if plan.refusal else "content": piece}, is_delta=True)
        for pieces in _call_pieces(plan, call_id):
            yield chunk({"tool_calls": pieces}, is_delta=True)
        if plan.malformed and plan.malformed not in ("no_done", "rest"):
            yield from _malformed(plan)
            return
        yield chunk({}, plan.reason)
        if plan.malformed == "rest":
            yield from _malformed(plan)
        if plan.usage:
            told: Json = {"id": call_id, "object": "chat.completion.chunk", "created": 1, "model": model, "choices": []}
            yield SentFrame(data_frame(plan, {**told, "usage": _usage(plan)}))
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


def _malformed(plan: Plan) -> Iterator[SentFrame]:
    begun = b'data: {"choices": [{"index": 0, "delta": {"conte'
    bad = {
        "json": begun + b"\n\n",
        "types": begun + b'nt": 42}}]}\n\n',
        "utf8": begun + b'nt": "\xf0\x9f"}}]}\n\n',
        "cut": begun + b'nt": "cut',
        "error": data_frame(plan, ChatWire().error(plan)),
        "done": b"data: [DONE]\n\n",
    }
    return malformed_frames(plan, bad)
