"""Summaries: a conversation that is too long continues from a summary of it, in the same run.

The summary is written by the model that does the work: it knows most, and its provider has cached the conversation,
which makes reading it again cheap. Facts that must stay exact are added verbatim.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

import msgspec

from kedge.agent.context_window import fit_history, margin_tokens
from kedge.agent.history_size import count_chars, count_request_chars, shrink_history
from kedge.agent.retry import ApiKeys, Attempts, RetryPolicy
from kedge.agent.step import DeltaWriter
from kedge.agent.summary_facts import MAX_CHARS, MIN_PROMPT_CHARS, build_facts
from kedge.agent.system_prompt import load_prompt
from kedge.engine.errors import TurnFailed
from kedge.engine.turn import TurnContext
from kedge.models.client import ModelClient
from kedge.models.errors import ModelError
from kedge.models.values import (
    CHARS_PER_TOKEN,
    Delta,
    Endpoint,
    ModelInfo,
    StepRequest,
    TextDelta,
    ToolCallDelta,
    compute_usage,
    estimate_tokens,
)
from kedge.models.wires.history import is_summary
from kedge.protocol.messages import Message, Text
from kedge.protocol.runs import Usage
from kedge.tools.process.command import Jobs

if TYPE_CHECKING:
    from kedge.agent.hooks.hooks import Hooks

SummaryReason = Literal["full", "refused", "asked"]
"""The context is nearly full, the provider refused it as too long, or a person asked for a summary."""

# If the whole conversation is too long, it is cut to these shares of the room that the context window has for it.
_SHARES = (0.7, 0.4, 0.2, 0.1)
# Enough for a long day's work; a longer summary would fill the next context.
MAX_OUTPUT_TOKENS = 16_000
_SHORT_SHARE = 0.1  # of the context window
ENOUGH_TOKENS = 1_024  # for a short summary
MIN_OUTPUT_TOKENS = 256  # less is useless
_SHORT_TOKENS = 4_000  # below this the request for a summary names the limit
_FACTS_SHARE = 4  # facts take at most this part of the room in the context window

_NOTICES: dict[SummaryReason, str] = {
    "full": "The context is nearly full. Summarizing the conversation and continuing.",
    "refused": "The conversation is too long for the model. Summarizing it and continuing.",
    "asked": "Summarizing the conversation.",
}


class SummaryRefused(TurnFailed):
    """A PreCompact hook refused the summary."""


class PreparedStep(NamedTuple):
    """The model and the request of the step that would come next."""

    endpoint: Endpoint
    request: StepRequest
    keys: ApiKeys | None
    retry: RetryPolicy
    jobs: Jobs | None = None  # of the workspace
    hooks: Hooks | None = None
    prompts: Mapping[str, str] = {}  # by message: the texts that prompts with a skill or command stand for


Prepare = Callable[[TurnContext, list[Message]], Awaitable[PreparedStep]]


def is_fresh(history: Sequence[Message]) -> bool:
    """Return whether there is nothing but a summary."""
    return len(history) == 1 and is_summary(history[0])


class SummarizeTurn:
    """The turn of a run of kind `summarize`. Does nothing in an empty or just summarized session."""

    def __init__(self, models: ModelClient, prepare: Prepare) -> None:
        self._models = models
        self._prepare = prepare

    async def __call__(self, ctx: TurnContext) -> None:
        history = await ctx.history()
        if not history or is_fresh(history):
            return
        await summarize(ctx, self._models, await self._prepare(ctx, history), reason="asked")


async def summarize(ctx: TurnContext, models: ModelClient, prepared: PreparedStep, *, reason: SummaryReason) -> None:
    """Write a summary, from which the history begins afterwards. Raises `TurnFailed`, and `SummaryRefused` before it
    began.

    `prepared` is the step that would come next: its system prompt and tools are in the provider's cache.
    """
    request = prepared.request
    if is_fresh(request.history):
        raise TurnFailed(
            "Even the summarized conversation does not fit the model's context. Use a model with a larger one.",
            "context_too_long",
        )
    if prepared.hooks is not None and (refusal := await prepared.hooks.check_summary(is_asked=reason == "asked")):
        raise SummaryRefused(f"A hook kept the conversation from being summarized: {refusal}", "hook_blocked")
    details = {"why": reason, "messages": len(request.history)}
    await ctx.append_event("summarize", message=_NOTICES[reason], details=details)
    max_chars = _max_facts_chars(request, prepared.endpoint.info)
    facts = await build_facts(ctx, request.history, prepared.jobs, max_chars, prepared.prompts)
    writer = _SummaryWriter(ctx, models, prepared, Attempts(ctx, prepared.retry, prepared.keys), facts)
    for summary_request in _list_requests(request, prepared.endpoint, is_whole_refused=reason == "refused"):
        if await writer.write(summary_request):
            return
    raise TurnFailed(
        f"The conversation could not be summarized: {writer.problem}. Start a new session, or use a model with a larger"
        " context window.",
        "summary_failed",
    )


class _SummaryWriter:
    def __init__(
        self, ctx: TurnContext, models: ModelClient, prepared: PreparedStep, attempts: Attempts, facts: str
    ) -> None:
        self.problem = "it does not fit the model's context"
        self._ctx = ctx
        self._models = models
        self._endpoint = prepared.endpoint
        self._attempts = attempts
        self._facts = facts

    async def write(self, request: StepRequest) -> bool:
        """Write a summary, with retries; return False if a shorter request might work."""
        while True:
            message = await self._ctx.begin_message(model=self._endpoint.name, summary=True)
            writer = DeltaWriter(message)
            has_text = False
            try:
                stream = self._models.stream(self._endpoint, request)
                async with contextlib.aclosing(stream) as groups:
                    async for deltas in groups:
                        shown: list[Delta] = [delta for delta in deltas if not isinstance(delta, ToolCallDelta)]
                        has_text = has_text or any(isinstance(d, TextDelta) and d.text.strip() for d in shown)
                        await writer.write(shown)
            except ModelError as error:
                await writer.interrupt(error.text, self._usage(writer, request) if writer.usage else None)
                if error.code == "context_too_long":
                    self.problem = error.text
                    return False
                self._endpoint = await self._attempts.prepare_next(error, self._endpoint)
                continue
            usage = self._usage(writer, request)
            if not has_text or writer.reason == "content_filter":
                self.problem = "the model wrote no summary"
                await writer.interrupt(self.problem, usage)
                return False
            if self._facts:
                message.open(Text("")).write(f"\n\n{self._facts}")
            await writer.finish(usage)
            return True

    def _usage(self, writer: DeltaWriter, request: StepRequest) -> Usage:
        return compute_usage(writer.usage, self._endpoint.info, count_request_chars(request), writer.length)


def _max_facts_chars(request: StepRequest, info: ModelInfo) -> int:
    if info.context_window is None:
        return MAX_CHARS
    room = info.context_window * CHARS_PER_TOKEN - count_request_chars(msgspec.structs.replace(request, history=()))
    return min(MAX_CHARS, max(room // _FACTS_SHARE, MIN_PROMPT_CHARS))


def _list_requests(request: StepRequest, endpoint: Endpoint, *, is_whole_refused: bool) -> list[StepRequest]:
    """Return the requests to try in turn: the whole conversation, then less and less of it.

    If some of them fit the context window, the others are left out.
    """
    info, window = endpoint.info, endpoint.info.context_window
    fitted = fit_history(request, info)
    size = count_chars(fitted.messages)
    most = min(MAX_OUTPUT_TOKENS, info.max_output_tokens or MAX_OUTPUT_TOKENS)
    if window is None:
        limit = most if info.max_output_tokens or endpoint.wire == "anthropic" else None
        histories = [] if is_whole_refused else [fitted.messages]
        histories += [shrink_history(fitted.messages, int(size * share)) for share in _SHARES]
        return [_build_request(request, history, limit) for history in histories]
    ratio, unused = fitted.tokens_per_char, margin_tokens(window) + estimate_tokens(len(load_prompt("summary")))
    base = count_request_chars(msgspec.structs.replace(request, history=())) * ratio
    room = int(window - unused - base)
    most = min(most, window // 4, max(room // 3, ENOUGH_TOKENS))  # so that there is room for work after it
    candidates: list[tuple[list[Message], int]] = []  # a history, and the tokens that it leaves
    if not is_whole_refused:
        left = window - unused - fitted.tokens
        is_short = size * ratio < _SHORT_SHARE * window  # cutting it would lose much and save nothing
        candidates.append((fitted.messages, max(left, ENOUGH_TOKENS) if is_short else left))
    for share in _SHARES:
        history = shrink_history(fitted.messages, int(min(max(room, 0) / ratio, size) * share))
        candidates.append((history, room - int(count_chars(history) * ratio)))
    fitting = [candidate for candidate in candidates if candidate[1] >= min(most, ENOUGH_TOKENS)]
    fitting = fitting or [candidate for candidate in candidates if candidate[1] >= MIN_OUTPUT_TOKENS]
    # If nothing seems to fit, the estimate may be wrong: the server decides.
    return [
        _build_request(request, history, min(most, max(left, MIN_OUTPUT_TOKENS)))
        for history, left in fitting or candidates
    ]


def _build_request(request: StepRequest, history: Sequence[Message], max_tokens: int | None) -> StepRequest:
    last = history[-1]
    asking = load_prompt("summary")
    if max_tokens is not None and max_tokens < _SHORT_TOKENS:
        asking += f"\n\nThere is little room: write at most {max_tokens // 2} words."
    instruction = Message(
        id=f"{last.id}-summary",
        session_id=last.session_id,
        run_id=last.run_id,
        role="user",
        parts=[Text(asking)],
        created_at=last.created_at,
    )
    return msgspec.structs.replace(request, history=[*history, instruction], max_output_tokens=max_tokens)
