"""The wire of Google's Gemini, from the server's side: the same plans become that wire's events."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from tests.support.model_plan import Plan
from tests.support.model_wire import IMAGES_NOTE, Json, SentFrame, data_frame, malformed_frames, text_of

PATH = re.compile(r"/v1beta/models/(?P<model>[^/:]+):(?P<method>streamGenerateContent|generateContent)")

# The plans speak Chat's words.
_REASONS = {"stop": "STOP", "length": "MAX_TOKENS", "tool_calls": "STOP", "content_filter": "SAFETY"}
_STATUSES = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    429: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    503: "UNAVAILABLE",
}


class GeminiWire:
    def system(self, body: Json) -> str:
        return text_of(body.get("systemInstruction", {}).get("parts", []))

    def last_prompt(self, body: Json) -> str:
        prompts = [content for content in body["contents"] if _is_prompt(content)]
        return text_of([part for part in prompts[-1]["parts"] if "text" in part]) if prompts else ""

    def steps(self, body: Json) -> int:
        steps = 0
        for content in body["contents"]:
            steps = 0 if _is_prompt(content) else steps + (content["role"] == "model")
        return steps

    def frames(self, plan: Plan, model: str, call_id: str) -> Iterator[SentFrame]:
        def chunk(parts: list[Json], finish: str | None = None, *, is_delta: bool = False) -> SentFrame:
            candidate: Json = {"index": 0}
            if parts:
                candidate["content"] = {"role": "model", "parts": parts}
            if finish:
                candidate["finishReason"] = finish
            body: Json = {"candidates": [candidate], "modelVersion": model, "responseId": call_id}
            if plan.usage:
                body["usageMetadata"] = _usage(plan, is_whole=bool(finish))
            if plan.unknown:
                candidate["unheard"] = body["xNew"] = {"deep": [1, None, {"text": "not the answer"}]}
            return SentFrame(data_frame(plan, body), is_delta)

        if plan.malformed in ("empty", "done", "comments"):
            yield from _malformed(plan)
            return
        if plan.unknown:
            yield chunk([{"hologram": {"text": "not the answer"}}])
        if plan.reasoning:
            yield chunk([{"text": plan.reasoning, "thought": True}], is_delta=True)
        for piece in plan.pieces():
            yield chunk([{"text": piece}], is_delta=True)
        calls = _calls(plan, call_id)
        for parts in [calls] if plan.call_style == "whole" and calls else [[call] for call in calls]:
            yield chunk(parts, is_delta=True)
        if plan.malformed and plan.malformed not in ("no_done", "rest"):
            yield from _malformed(plan)
            return
        # An answer without calls is signed at its end, on a part without a text.
        last = [{"text": "", "thoughtSignature": plan.signature}] if plan.signature and not calls else []
        yield chunk(last, _reason(plan))
        if plan.malformed == "rest":
            yield from _malformed(plan)

    def whole(self, plan: Plan, model: str, call_id: str) -> Json:
        parts = [{"text": "".join(plan.pieces())}, *_calls(plan, call_id)]
        candidate = {"index": 0, "content": {"role": "model", "parts": parts}, "finishReason": _reason(plan)}
        return {"candidates": [candidate], "usageMetadata": _usage(plan, is_whole=True), "modelVersion": model}

    def error(self, plan: Plan) -> Json:
        status = _STATUSES.get(plan.status, "UNAVAILABLE" if plan.status >= 500 else "UNKNOWN")
        return {"error": {"code": plan.status or 503, "message": plan.message, "status": status}}


def listing(models: tuple[str, ...]) -> Json:
    known = {"version": "1", "inputTokenLimit": 1000, "outputTokenLimit": 100}
    writers = [{"name": f"models/{name}", "supportedGenerationMethods": ["generateContent"]} for name in models]
    embedder = {"name": "models/embedder", "supportedGenerationMethods": ["embedContent"]}
    return {"models": [{**known, **model} for model in [embedder, *writers]]}


def _calls(plan: Plan, call_id: str) -> list[Json]:
    """Each call is whole; the first has the signature."""
    calls: list[Json] = []
    for i, call in enumerate(plan.tool_calls):
        given = {"name": call.name, "args": json.loads(call.arguments)}
        known = {} if plan.call_style in ("no_id", "empty_id") else {"id": plan.call_id(i, call_id)}
        signed = {"thoughtSignature": plan.signature} if plan.signature and i == 0 else {}
        calls.append({"functionCall": {**known, **given}, **signed})
    return calls


def _usage(plan: Plan, *, is_whole: bool) -> Json:
    """Of all so far: the answer is counted at its end."""
    prompt = plan.input_tokens + plan.cache_read_tokens
    usage: Json = {"promptTokenCount": prompt, "totalTokenCount": prompt + plan.output_count}
    if plan.cache_read_tokens:
        usage["cachedContentTokenCount"] = plan.cache_read_tokens
    if is_whole:
        thoughts = min(1, plan.output_count) if plan.reasoning else 0
        usage["candidatesTokenCount"] = plan.output_count - thoughts
        if thoughts:
            usage["thoughtsTokenCount"] = thoughts
    return usage


def _reason(plan: Plan) -> str:
    return _REASONS.get(plan.reason, plan.reason)


def _is_prompt(content: Json) -> bool:
    """A user's words; results alone are the agent's, and so are the images that follow those of an older model."""
    texts = [part["text"] for part in content["parts"] if "text" in part]
    return content["role"] == "user" and bool(texts) and not texts[0].startswith(IMAGES_NOTE)


def _malformed(plan: Plan) -> Iterator[SentFrame]:
    begun = b'data: {"candidates": [{"content": {"parts": [{"te'
    bad = {
        "json": begun + b"\n\n",
        "types": begun + b'xt": 42}]}}]}\n\n',
        "utf8": begun + b'xt": "\xf0\x9f"}]}}]}\n\n',
        "cut": begun + b'xt": "cut',
        "error": data_frame(plan, GeminiWire().error(plan)),
        "done": b"data: [DONE]\n\n",  # of other wires: this one has no event for its end
    }
    return malformed_frames(plan, bad)
