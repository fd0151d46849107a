"""The wire of OpenAI's Responses, from the server's side: the same plans become that wire's events."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any

from tests.support.model_plan import Plan
from tests.support.model_wire import Json, SentFrame, encoded, frame_of, malformed_frames, text_of

# The plans speak Chat's words.
_INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter"}


class ResponsesWire:
    def system(self, body: Json) -> str:
        return str(body.get("instructions", ""))

    def last_prompt(self, body: Json) -> str:
        prompts = [item for item in body["input"] if item.get("role") == "user"]
        return text_of(prompts[-1]["content"]) if prompts else ""

    def steps(self, body: Json) -> int:
        """An answer is as many items as it has parts."""
        steps, is_answer = 0, False
        for item in body["input"]:
            is_prompt = item.get("role") == "user"
            is_next = not is_prompt and item.get("type") != "function_call_output"
            steps = 0 if is_prompt else steps + (is_next and not is_answer)
            is_answer = is_next
        return steps

    def frames(self, plan: Plan, model: str, call_id: str) -> Iterator[SentFrame]:
        return _Sent(plan, model, call_id).frames()

    def whole(self, plan: Plan, model: str, call_id: str) -> Json:
        sent = _Sent(plan, model, call_id)
        for _ in sent.items():
            pass
        return sent.response(sent.status, plan.usage)

    def error(self, plan: Plan) -> Json:
        return {"error": {"message": plan.message, "type": plan.error, "code": plan.error, "param": None}}


class _Sent:
    """One answer."""

    def __init__(self, plan: Plan, model: str, call_id: str) -> None:
        self._plan = plan
        self._model = model
        self._id = call_id
        self._numbers = count()
        self._output: list[Json] = []

    @property
    def status(self) -> str:
        return "incomplete" if self._plan.reason in _INCOMPLETE else "completed"

    def response(self, status: str, has_usage: bool = False) -> Json:
        plan = self._plan
        prompt = plan.input_tokens + plan.cache_read_tokens + plan.cache_write_tokens
        usage = {
            "input_tokens": prompt,
            "input_tokens_details": {
                "cached_tokens": plan.cache_read_tokens,
                "cache_write_tokens": plan.cache_write_tokens,
            },
            "output_tokens": plan.output_count,
            "output_tokens_details": {"reasoning_tokens": plan.output_count // 2},
            "total_tokens": prompt + plan.output_count,
        }
        return {
            "id": f"resp-{self._id}",
            "object": "response",
            "created_at": 1,
            "model": self._model,
            "status": status,
            "error": {"code": plan.error, "message": plan.message} if status == "failed" else None,
            "incomplete_details": {"reason": _INCOMPLETE[plan.reason]} if status == "incomplete" else None,
            "output": [item for item in self._output if item],
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
            "usage": usage if has_usage else None,
        }

    def frames(self) -> Iterator[SentFrame]:
        plan = self._plan
        if plan.malformed in ("empty", "done", "comments"):
            yield from self._malformed()
            return
        yield self._event("response.created", response=self.response("in_progress"))
        yield self._event("response.in_progress", response=self.response("in_progress"))
        if plan.unknown:
            yield self._event("response.unheard_of", delta={"text": "not the answer"}, item=7)
        yield from self.items()
        if plan.malformed and plan.malformed not in ("no_done", "rest"):
            yield from self._malformed()
            return
        yield self._event(f"response.{self.status}", response=self.response(self.status, plan.usage))
        if plan.malformed == "rest":
            yield from self._malformed()

    def items(self) -> Iterator[SentFrame]:
        plan = self._plan
        if plan.unknown:
            # One that is not ours to use. The vendor's own client stumbles over those that nobody has heard of.
            search: Json = {"type": "web_search_call", "id": f"ws-{self._id}", "status": "completed"}
            yield from self._whole_item({**search, "action": {"type": "search", "query": "not the answer"}})
        if plan.reasoning:
            yield from self._thought()
        if plan.redacted:
            hidden: Json = {"type": "reasoning", "id": f"rs-hidden-{self._id}", "summary": []}
            yield from self._whole_item({**hidden, "encrypted_content": plan.redacted})
        if any(plan.pieces()):
            yield from self._message()
        yield from self._calls()

    def _thought(self) -> Iterator[SentFrame]:
        plan, item_id = self._plan, f"rs-{self._id}"
        at, added = self._added({"type": "reasoning", "id": item_id, "summary": []})
        place: Json = {"item_id": item_id, "output_index": at, "summary_index": 0}
        yield added
        part: Json = {"type": "summary_text", "text": ""}
        yield self._event("response.reasoning_summary_part.added", **place, part=part)
        name = "response.reasoning_summary_text"
        yield self._event(f"{name}.delta", is_delta=True, **place, delta=plan.reasoning)
        yield self._event(f"{name}.done", **place, text=plan.reasoning)
        part = {**part, "text": plan.reasoning}
        yield self._event("response.reasoning_summary_part.done", **place, part=part)
        kept = {"encrypted_content": plan.signature} if plan.signature else {}
        yield self._done(at, {"type": "reasoning", "id": item_id, "summary": [part], **kept})

    def _message(self) -> Iterator[SentFrame]:
        plan, item_id = self._plan, f"msg-{self._id}"
        message: Json = {"type": "message", "id": item_id, "role": "assistant"}
        if plan.phase:
            message["phase"] = plan.phase
        at, added = self._added({**message, "status": "in_progress", "content": []})
        yield added
        place: Json = {"item_id": item_id, "output_index": at, "content_index": 0}
        name, word = ("refusal", "refusal") if plan.refusal else ("output_text", "text")
        more: Json = {} if plan.refusal else {"logprobs": []}
        whole: Json = {**more, word: "".join(plan.pieces())}
        part: Json = {"type": name, word: "", **({} if plan.refusal else {"annotations": []})}
        yield self._event("response.content_part.added", **place, part=part)
        for piece in plan.pieces():
            yield self._event(f"response.{name}.delta", is_delta=True, **place, **more, delta=piece)
        part = {**part, word: whole[word]}
        yield self._event(f"response.{name}.done", **place, **whole)
        yield self._event("response.content_part.done", **place, part=part)
        yield self._done(at, {**message, "status": "completed", "content": [part]})

    def _calls(self) -> Iterator[SentFrame]:
        plan = self._plan
        opened: dict[int, int] = {}  # the places of the calls among the output

        def item(i: int, arguments: str, status: str) -> Json:
            known: Json = {"id": f"fc-{self._id}-{i}", "call_id": plan.call_id(i, self._id)}
            named: Json = {"name": plan.tool_calls[i].name, "arguments": arguments, "status": status}
            return {"type": "function_call", **known, **named}

        def ended(i: int) -> Iterator[SentFrame]:
            place: Json = {"item_id": f"fc-{self._id}-{i}", "output_index": opened[i]}
            given = plan.tool_calls[i].arguments
            name = plan.tool_calls[i].name
            yield self._event("response.function_call_arguments.done", **place, name=name, arguments=given)
            yield self._done(opened[i], item(i, given, "completed"))

        for i, text in plan.input_pieces():
            if i not in opened:
                if opened and not plan.interleave:
                    yield from ended(max(opened))
                opened[i], added = self._added(item(i, "", "in_progress"))
                yield added
            place: Json = {"item_id": f"fc-{self._id}-{i}", "output_index": opened[i]}
            yield self._event("response.function_call_arguments.delta", is_delta=True, **place, delta=text)
        for i in sorted(opened) if plan.interleave else sorted(opened)[-1:]:
            yield from ended(i)

    def _whole_item(self, item: Json) -> Iterator[SentFrame]:
        at, added = self._added(item)
        yield added
        yield self._done(at, item)

    def _added(self, item: Json) -> tuple[int, SentFrame]:
        self._output.append({})
        at = len(self._output) - 1
        return at, self._event("response.output_item.added", output_index=at, item=item)

    def _done(self, at: int, item: Json) -> SentFrame:
        self._output[at] = item
        return self._event("response.output_item.done", output_index=at, item=item)

    def _malformed(self) -> Iterator[SentFrame]:
        """`failed` is the other way in which this wire tells of an error."""
        plan = self._plan
        place = b'"item_id":"m","output_index":9,"content_index":0'
        begun = b'data: {"type":"response.output_text.delta",' + place + b',"delta":'
        match plan.malformed:
            case "error":
                yield self._event("error", code=plan.error, message=plan.message, param=None)
            case "failed":
                yield self._event("response.failed", response=self.response("failed"))
            case _:
                bad = {
                    "json": begun + b"\n\n",
                    "types": begun + b"42}\n\n",
                    "utf8": begun + b'"\xf0\x9f"}\n\n',
                    "cut": begun,
                    "done": b"data: [DONE]\n\n",
                }
                yield from malformed_frames(plan, bad)

    def _event(self, name: str, /, *, is_delta: bool = False, **fields: Any) -> SentFrame:
        plan = self._plan
        body: Json = {"type": name, "sequence_number": next(self._numbers), **fields}
        if plan.unknown:
            body["x_new"] = {"deep": [1, None, {"text": "not the answer"}]}
        data = b"data: " + encoded(body, raw=plan.raw)
        return SentFrame(frame_of(plan, b"event: " + name.encode(), data), is_delta)
