"""Summaries: a conversation that is too long continues from a summary of it, in the same run.

The summary is written by the model that does the work: it knows most, and its provider has cached the conversation,
which makes reading it again cheap. Facts that must stay exact are added verbatim.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Literal, NamedTuple

import msgspec

from kedge.agent.history_size import count_chars, count_request_chars, cut_text, shrink_history
from kedge.agent.retry import ApiKeys, Attempts, RetryPolicy
from kedge.agent.step import DeltaWriter
from kedge.agent.system_prompt import load_prompt
from kedge.config.schema import AgentConfig
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
from kedge.protocol.messages import File, Image, Message, Text, ToolResult, finish_of
from kedge.protocol.runs import Usage

SummaryReason = Literal["full", "refused", "asked"]
"""The context is nearly full, the provider refused it as too long, or a person asked for a summary."""

# If the whole conversation is too long, it is cut to these shares of the context window.
_SHARES = (0.7, 0.4, 0.2)
# Enough for a long day's work; a longer summary would fill the next context.
MAX_OUTPUT_TOKENS = 16_000
MAX_REQUEST_CHARS = 12_000  # of the prompts, quoted verbatim
MAX_TODOS_CHARS = 4_000

_NOTICES: dict[SummaryReason, str] = {
    "full": "The context is nearly full. Summarizing the conversation and continuing.",
    "refused": "The conversation is too long for the model. Summarizing it and continuing.",
    "asked": "Summarizing the conversation.",
}


class PreparedStep(NamedTuple):
    """The model and the request of the step that would come next."""

    endpoint: Endpoint
    request: StepRequest
    keys: ApiKeys | None = None


Prepare = Callable[[TurnContext, list[Message]], Awaitable[PreparedStep]]


def is_nearly_full(history: Sequence[Message], info: ModelInfo, config: AgentConfig) -> bool:
    """Return whether to summarize before the next step: by the last step's usage, and an estimate for what followed."""
    if info.context_window is None:
        return False
    limit = config.summarize_at * info.context_window
    first = _find_step_usage(history[1]) if len(history) > 1 and is_summary(history[0]) else None
    if first is not None and first.prompt_tokens >= limit:
        return False  # the first step after a summary was over the limit: another summary would not help
    for index in reversed(range(len(history))):
        if (usage := _find_step_usage(history[index])) is not None:
            used = usage.prompt_tokens + usage.output_tokens
            return used + estimate_tokens(count_chars(history[index + 1 :])) >= limit
    return False  # no step since the last summary


def _find_step_usage(message: Message) -> Usage | None:
    if message.summary or message.role != "assistant":
        return None
    finish = finish_of(message.parts)
    return None if finish is None else finish.usage


def is_fresh(history: Sequence[Message]) -> bool:
    """Return whether there is nothing but a summary."""
    return len(history) == 1 and is_summary(history[0])


class SummarizeTurn:
    """The turn of a run of kind `summarize`. Does nothing in an empty or just summarized session."""

    def __init__(self, models: ModelClient, retry: RetryPolicy, prepare: Prepare) -> None:
        self._models = models
        self._retry = retry
        self._prepare = prepare

    async def __call__(self, ctx: TurnContext) -> None:
        history = await ctx.history()
        if not history or is_fresh(history):
            return
        await summarize(ctx, self._models, await self._prepare(ctx, history), reason="asked", retry=self._retry)


async def summarize(
    ctx: TurnContext,
    models: ModelClient,
    prepared: PreparedStep,
    *,
    reason: SummaryReason,
    retry: RetryPolicy | None = None,
) -> None:
    """Write a summary, from which the history begins afterwards. Raises `TurnFailed`.

    `prepared` is the step that would come next: its system prompt and tools are in the provider's cache.
    """
    request = prepared.request
    if is_fresh(request.history):
        raise TurnFailed(
            "Even the summarized conversation does not fit the model's context. Use a model with a larger one.",
            "context_too_long",
        )
    details = {"why": reason, "messages": len(request.history)}
    await ctx.append_event("summarize", message=_NOTICES[reason], details=details)
    writer = _SummaryWriter(ctx, models, prepared, Attempts(ctx, retry or RetryPolicy(), prepared.keys))
    for summary_request in _list_requests(request, prepared.endpoint.info, is_whole_refused=reason == "refused"):
        if await writer.write(summary_request):
            return
    raise TurnFailed(
        f"The conversation could not be summarized: {writer.problem}. Start a new session.", "summary_failed"
    )


class _SummaryWriter:
    def __init__(self, ctx: TurnContext, models: ModelClient, prepared: PreparedStep, attempts: Attempts) -> None:
        self.problem = "it does not fit the model's context"
        self._ctx = ctx
        self._models = models
        self._endpoint = prepared.endpoint
        self._attempts = attempts
        self._added = _format_verbatim(ctx, prepared.request.history)

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
            if self._added:
                message.open(Text("")).write(f"\n\n{self._added}")
            await writer.finish(usage)
            return True

    def _usage(self, writer: DeltaWriter, request: StepRequest) -> Usage:
        return compute_usage(writer.usage, self._endpoint.info, count_request_chars(request), writer.length)


def _list_requests(request: StepRequest, info: ModelInfo, *, is_whole_refused: bool) -> list[StepRequest]:
    """Return the requests to try in turn: the whole conversation, then less and less of it."""
    size = count_chars(request.history)
    window = info.context_window * CHARS_PER_TOKEN if info.context_window else size
    histories = [] if is_whole_refused else [request.history]
    histories += [shrink_history(request.history, int(min(window, size) * share)) for share in _SHARES]
    return [_build_request(request, history, info) for history in histories]


def _build_request(request: StepRequest, history: Sequence[Message], info: ModelInfo) -> StepRequest:
    last = history[-1]
    instruction = Message(
        id=f"{last.id}-summary",
        session_id=last.session_id,
        run_id=last.run_id,
        role="user",
        parts=[Text(load_prompt("summary"))],
        created_at=last.created_at,
    )
    max_tokens = min(MAX_OUTPUT_TOKENS, info.max_output_tokens or MAX_OUTPUT_TOKENS)
    return msgspec.structs.replace(request, history=[*history, instruction], max_output_tokens=max_tokens)


def _format_verbatim(ctx: TurnContext, history: Sequence[Message]) -> str:
    """Return what the next step needs exactly: the prompts of this turn and the todo list."""
    sections: list[str] = []
    prompts = [run.prompt for run in [ctx.run, *ctx.joined] if run.kind != "summarize" and run.prompt.strip()]
    if prompts:
        texts = "\n\n".join(cut_text(prompt, MAX_REQUEST_CHARS // len(prompts)) for prompt in prompts)
        sections.append(f"## The request being worked on, word for word\n{texts}")
        attached = _list_attachments(history, {run.run_id for run in [ctx.run, *ctx.joined]})
        if attached:
            sections.append(f"Attached to it, and no longer shown: {', '.join(attached)}")
    if todos := _find_todos(history):
        sections.append(f"## Todo list\n{cut_text(todos, MAX_TODOS_CHARS)}")
    return "\n\n".join(sections)


def _list_attachments(history: Sequence[Message], run_ids: set[str]) -> list[str]:
    parts = [
        part for message in history if message.role == "user" and message.run_id in run_ids for part in message.parts
    ]
    return [part.name if isinstance(part, File) else "an image" for part in parts if isinstance(part, (File, Image))]


def _find_todos(history: Sequence[Message]) -> str:
    for message in reversed(history):
        for part in message.parts:
            if isinstance(part, ToolResult) and part.name == "todos" and not part.is_error:
                return part.content
    return ""
