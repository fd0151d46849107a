"""Fits requests into the model's context window: old results are shortened, and answers get the room that is left.

Everything is derived from the history and the window alone. So a turn goes on in the same way after a restart, and what
was shortened once is shortened the same way in all later requests, which the providers' prompt caches need.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, TypeGuard

import msgspec

from kedge.agent.context_files import NESTED
from kedge.agent.history_size import count_chars, count_request_chars
from kedge.config.schema import AgentConfig
from kedge.models.values import CHARS_PER_TOKEN, Endpoint, ModelInfo, StepRequest, ToolSpec, estimate_tokens
from kedge.models.wires.anthropic import MAX_TOKENS
from kedge.models.wires.history import is_summary
from kedge.protocol.messages import Message, Part, ToolResult, finish_of
from kedge.protocol.runs import Usage
from kedge.tools.process.output import SAVED_OUTPUT, cut_at_lines

RESULT_SHARE = 4  # a result takes at most this part of the window
UNKNOWN_RESULT_CHARS = 50_000  # of a result, if the window is unknown
MIN_ANSWER_TOKENS = 256  # asked for even if less seems to be left: the size of the prompt is an estimate

# Old results are shortened when this part of the window is full, and if that frees a fifth of it: each time costs the
# provider's cache of everything behind the first shortened result.
SHORTEN_AT = 0.5
MIN_FREED_SHARE = 0.2
KEPT_STEPS = 3  # whose results stay whole
OLD_RESULT_CHARS = 10_000  # a longer result is shortened; in a small window a shorter one, too
_OLD_RESULTS_IN_WINDOW = 16
_KEPT_SHARE = 5  # of a shortened result this part of the limit is kept

_COMFORTABLE = 1.7  # times the size of the instructions and tools: below, hardly a step fits
_RAISE_WINDOW = {
    "ollama": "start Ollama with OLLAMA_CONTEXT_LENGTH=32768",
    "lmstudio": "load the model with a larger context length in LM Studio",
    "llamacpp": "start llama-server with -c 32768",
    "vllm": "start vLLM with --max-model-len 32768",
}

# Tokens for each character: before a provider has counted, and the bounds of what one may count.
_UNMEASURED = 1 / 3
_LEAST, _MOST = 1 / CHARS_PER_TOKEN, 1.0


class FittedHistory(NamedTuple):
    messages: list[Message]  # with old results shortened
    tokens: int  # estimated size of the whole prompt
    tokens_per_char: float  # as the provider counted the last step


def max_result_chars(info: ModelInfo) -> int:
    """Return how long one tool result may be."""
    window = info.context_window
    return UNKNOWN_RESULT_CHARS if window is None else window * CHARS_PER_TOKEN // RESULT_SHARE


def explain_small_window(endpoint: Endpoint, system: str, tools: Sequence[ToolSpec]) -> str | None:
    """Return a line for people if the window has little room beside the instructions and tools."""
    window = endpoint.info.context_window
    base = estimate_tokens(count_request_chars(StepRequest(system=system, history=(), tools=tools)))
    if window is None or window >= base * _COMFORTABLE:
        return None
    how = _RAISE_WINDOW.get(endpoint.provider, "give the model a larger one on its server")
    return (
        f"The context window of {endpoint.name} has only {window:,} tokens, and the instructions and tools take about"
        f" {base:,} of them: {how}"
    )


def margin_tokens(window: int) -> int:
    """Return what stays unused, because sizes are estimates."""
    return max(128, window // 50)


def fit_request(request: StepRequest, endpoint: Endpoint) -> StepRequest:
    """Return the request as it is sent: with old results shortened, and room for the answer."""
    info = endpoint.info
    fitted = fit_history(request, info)
    # The anthropic wire must name a limit.
    limit = info.max_output_tokens or (MAX_TOKENS if endpoint.wire == "anthropic" else None)
    if limit is not None and info.context_window is not None:
        left = info.context_window - fitted.tokens - margin_tokens(info.context_window)
        limit = min(limit, max(left, MIN_ANSWER_TOKENS))
    return msgspec.structs.replace(request, history=fitted.messages, max_output_tokens=limit)


def fit_history(request: StepRequest, info: ModelInfo) -> FittedHistory:
    history, window = request.history, info.context_window
    place = _find_cuts(history, window)
    messages = _shorten(history, place.cut, window)
    base = count_request_chars(msgspec.structs.replace(request, history=()))
    if place.usage is None:
        return FittedHistory(messages, math.ceil((base + count_chars(messages)) * _UNMEASURED), _UNMEASURED)
    sent = _shorten(history[: place.step], place.last_cut, window)
    counted = base + count_chars(sent)
    ratio = min(max(place.usage.prompt_tokens / counted, _LEAST), _MOST) if counted else _LEAST
    new = count_chars(messages[place.step + 1 :]) + count_chars(messages[: place.step]) - count_chars(sent)
    tokens = place.usage.prompt_tokens + place.usage.output_tokens + math.ceil(new * ratio)
    return FittedHistory(messages, max(tokens, 0), ratio)


def is_nearly_full(history: Sequence[Message], info: ModelInfo, config: AgentConfig) -> bool:
    """Return whether to summarize before the next step: by the last step's usage, and an estimate for what followed."""
    window = info.context_window
    if window is None:
        return False
    limit = config.summarize_at * window
    first = _find_step_usage(history[1]) if len(history) > 1 and is_summary(history[0]) else None
    if first is not None and first.prompt_tokens >= limit:
        return False  # the first step after a summary was over the limit: another summary would not help
    place = _find_cuts(history, window)
    if place.usage is None:
        return False  # no step since the last summary
    used = place.usage.prompt_tokens + place.usage.output_tokens
    freed = _count_freed(history[place.last_cut : place.cut], window)
    return used + estimate_tokens(count_chars(history[place.step + 1 :])) - freed // CHARS_PER_TOKEN >= limit


class _Cuts(NamedTuple):
    """The last step, and how many messages had their results shortened in its request and have in the next one."""

    step: int
    usage: Usage | None
    last_cut: int
    cut: int


def _find_cuts(history: Sequence[Message], window: int | None) -> _Cuts:
    """Follow the conversation from its beginning: what was decided after a step depends on nothing that came later."""
    steps = [index for index, message in enumerate(history) if _find_step_usage(message) is not None]
    if not steps:
        return _Cuts(0, None, 0, 0)
    last_cut = cut = 0
    for number, step in enumerate(steps):
        last_cut = cut
        if window is None or number < KEPT_STEPS:
            continue
        usage = _find_step_usage(history[step])
        assert usage is not None
        end = steps[number + 1] if number + 1 < len(steps) else len(history)
        used = usage.prompt_tokens + usage.output_tokens + estimate_tokens(count_chars(history[step + 1 : end]))
        if used < SHORTEN_AT * window:
            continue
        candidate = steps[number - KEPT_STEPS + 1]
        if _count_freed(history[cut:candidate], window) / CHARS_PER_TOKEN >= MIN_FREED_SHARE * window:
            cut = candidate
    return _Cuts(steps[-1], _find_step_usage(history[steps[-1]]), last_cut, cut)


def _find_step_usage(message: Message) -> Usage | None:
    if message.summary or message.role != "assistant":
        return None
    finish = finish_of(message.parts)
    return None if finish is None else finish.usage


def _count_freed(messages: Sequence[Message], window: int) -> int:
    """Return how many characters less there are after shortening."""
    limit = _old_result_chars(window)
    long = [len(part.content) for message in messages for part in message.parts if _is_long(part, limit)]
    return sum(long) - len(long) * limit // _KEPT_SHARE


def _shorten(history: Sequence[Message], cut: int, window: int | None) -> list[Message]:
    """Return the history with the long results of the first `cut` messages shortened."""
    if window is None or not cut:
        return list(history)
    limit = _old_result_chars(window)
    return [
        _shorten_message(message, limit)
        if index < cut and any(_is_long(part, limit) for part in message.parts)
        else message
        for index, message in enumerate(history)
    ]


def _shorten_message(message: Message, limit: int) -> Message:
    parts: list[Part] = [
        msgspec.structs.replace(part, content=_shorten_result(part, limit // _KEPT_SHARE))
        if _is_long(part, limit)
        else part
        for part in message.parts
    ]
    return msgspec.structs.replace(message, parts=parts)


def _shorten_result(result: ToolResult, kept_chars: int) -> str:
    """Return the beginning and the end of an old result, in whole lines where they are short.

    Instructions of a directory that follow it are kept whole: they are shown once.
    """
    content, mark, instructions = result.content, "", ""
    if result.metadata and "instructions" in result.metadata:
        content, mark, instructions = content.rpartition(NESTED) if NESTED in content else (content, "", "")
        if len(content) <= kept_chars:
            return result.content
    head, tail = cut_at_lines(content, kept_chars * 3 // 4, kept_chars // 4)
    if (saved := SAVED_OUTPUT.search(content)) is not None:
        again = f"All of it is in {saved[1]}: use view with an offset, or grep."
    else:
        again = f"Call {result.name} again if you need it."
    cut = len(content) - len(head) - len(tail)
    left_out = f"[kedge: {cut:,} characters of this earlier result are left out here, to save room. {again}]"
    return f"{head}\n{left_out}\n\n{tail}{mark}{instructions}"


def _is_long(part: Part, limit: int) -> TypeGuard[ToolResult]:
    return isinstance(part, ToolResult) and len(part.content) > limit


def _old_result_chars(window: int) -> int:
    return min(OLD_RESULT_CHARS, window * CHARS_PER_TOKEN // _OLD_RESULTS_IN_WINDOW)
