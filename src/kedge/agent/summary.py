"""Summarising: a conversation that is too long goes on from a summary of it, in the same run.

The model that does the work writes it: it understands most, and its provider's cache holds the conversation already,
so that reading it once more is cheap. What must not depend on a model's memory is added word for word.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Literal, NamedTuple

import msgspec

from kedge.agent.delta_writer import Answer
from kedge.agent.history_size import cut_text, shrunk, size_of, size_of_request
from kedge.agent.retry import Attempts, Keys, Retry
from kedge.agent.system_prompt import prompt_text
from kedge.config.schema import AgentConfig
from kedge.engine.errors import TurnFailed
from kedge.engine.turn import TurnContext
from kedge.models.client import Models
from kedge.models.cost import CHARS_PER_TOKEN, estimated_tokens, usage_of
from kedge.models.errors import ModelError
from kedge.models.values import Delta, Endpoint, ModelInfo, StepRequest, TextDelta, ToolCallDelta
from kedge.models.wires.history import is_summary
from kedge.protocol.events import AgentEvent
from kedge.protocol.messages import File, Image, Message, Text, ToolResult, finish_of
from kedge.protocol.runs import Usage

Why = Literal["full", "refused", "asked"]
"""The context is nearly full, a provider found it too long, or a person asked."""

# How much of the context window a summary may be made from, when all of it was too much.
_SHARES = (0.7, 0.4, 0.2)
# Enough for a long day's work; more would fill the next context before it began.
MAX_OUTPUT_TOKENS = 16_000
MAX_REQUEST_CHARS = 12_000  # of what is asked, word for word
MAX_TODOS_CHARS = 4_000

_WHY: dict[Why, str] = {
    "full": "the context is nearly full; the conversation is summarised, and the work goes on",
    "refused": "the conversation is too long for the model; it is summarised, and the work goes on",
    "asked": "the conversation is summarised",
}


class Prepared(NamedTuple):
    """What a step would be taken with now."""

    endpoint: Endpoint
    request: StepRequest
    keys: Keys | None = None


Prepare = Callable[[TurnContext, list[Message]], Awaitable[Prepared]]


def is_nearly_full(history: Sequence[Message], info: ModelInfo, config: AgentConfig) -> bool:
    """Whether to summarise before the next step. Measured by the last step, and guessed from there on."""
    if info.context_window is None:
        return False
    limit = config.summarize_at * info.context_window
    first = _step_usage(history[1]) if len(history) > 1 and is_summary(history[0]) else None
    if first is not None and first.prompt_tokens >= limit:
        return False  # a summary alone was over it: another one at each step would make no room
    for index in reversed(range(len(history))):
        if (usage := _step_usage(history[index])) is not None:
            used = usage.prompt_tokens + usage.output_tokens
            return used + estimated_tokens(size_of(history[index + 1 :])) >= limit
    return False  # no step since the last summary: another one would say the same


def _step_usage(message: Message) -> Usage | None:
    if message.summary or message.role != "assistant":
        return None
    finish = finish_of(message.parts)
    return None if finish is None else finish.usage


def is_fresh(history: Sequence[Message]) -> bool:
    """Whether nothing was said since the last summary: there is nothing that another one could leave out."""
    return len(history) == 1 and is_summary(history[0])


class SummarizeTurn:
    """A run of kind `summarize`. An empty session completes at once, and so does one that was just summarised."""

    def __init__(self, models: Models, retry: Retry, prepare: Prepare) -> None:
        self._models = models
        self._retry = retry
        self._prepare = prepare

    async def __call__(self, ctx: TurnContext) -> None:
        history = await ctx.history()
        if not history or is_fresh(history):
            return
        await summarise(ctx, self._models, await self._prepare(ctx, history), why="asked", retry=self._retry)


async def summarise(
    ctx: TurnContext, models: Models, prepared: Prepared, *, why: Why, retry: Retry | None = None
) -> None:
    """Write a summary of what the request holds; the history begins there afterwards. Raises `TurnFailed`.

    `prepared` is the step that would be taken next, with its system prompt and tools: so the provider's cache holds.
    """
    request = prepared.request
    if is_fresh(request.history):
        raise TurnFailed(
            "the model's context is too small for what is left after summarising; use a model with a larger one",
            "context_too_long",
        )
    details = {"why": why, "messages": len(request.history)}
    await ctx.append_event(AgentEvent(type="summarize", run_id="", session_id="", message=_WHY[why], details=details))
    writing = _Writing(ctx, models, prepared, Attempts(ctx, retry or Retry(), prepared.keys))
    for asked in _tries(request, prepared.endpoint.info, is_whole_refused=why == "refused"):
        if await writing.wrote(asked):
            return
    raise TurnFailed(
        f"the conversation could not be summarised: {writing.problem}; start a new session", "summary_failed"
    )


class _Writing:
    def __init__(self, ctx: TurnContext, models: Models, prepared: Prepared, attempts: Attempts) -> None:
        self.problem = "it does not fit the model's context"
        self._ctx = ctx
        self._models = models
        self._endpoint = prepared.endpoint
        self._attempts = attempts
        self._added = _word_for_word(ctx, prepared.request.history)

    async def wrote(self, request: StepRequest) -> bool:
        """Whether this request brought a summary; False: less to read may. Faults that pass are waited out."""
        while True:
            message = await self._ctx.begin_message(model=self._endpoint.name, summary=True)
            answer = Answer(message)
            has_text = False
            try:
                stream = self._models.stream(self._endpoint, request)
                async with contextlib.aclosing(stream) as groups:
                    async for deltas in groups:
                        said: list[Delta] = [delta for delta in deltas if not isinstance(delta, ToolCallDelta)]
                        has_text = has_text or _has_text(said)
                        await answer.write(said)
            except ModelError as error:
                await answer.interrupt(error.text, self._usage(answer, request) if answer.usage else None)
                if error.code == "context_too_long":
                    self.problem = error.text
                    return False
                self._endpoint = await self._attempts.again(error, self._endpoint)
                continue
            usage = self._usage(answer, request)
            if not has_text or answer.reason == "content_filter":
                self.problem = "the model wrote none"
                await answer.interrupt(self.problem, usage)
                return False
            if self._added:
                message.open(Text("")).write(f"\n\n{self._added}")
            await answer.finish(usage)
            return True

    def _usage(self, answer: Answer, request: StepRequest) -> Usage:
        return usage_of(answer.usage, self._endpoint.info, size_of_request(request), answer.length)


def _tries(request: StepRequest, info: ModelInfo, *, is_whole_refused: bool) -> list[StepRequest]:
    """What is asked for, one after the other as long as it is too much: all of it, then less and less."""
    size = size_of(request.history)
    window = info.context_window * CHARS_PER_TOKEN if info.context_window else size
    tries = [] if is_whole_refused else [request.history]
    tries += [shrunk(request.history, int(min(window, size) * share)) for share in _SHARES]
    return [_asking(request, history, info) for history in tries]


def _asking(request: StepRequest, history: Sequence[Message], info: ModelInfo) -> StepRequest:
    last = history[-1]
    wish = Message(
        id=f"{last.id}-summary",
        session_id=last.session_id,
        run_id=last.run_id,
        role="user",
        parts=[Text(prompt_text("summary"))],
        created_at=last.created_at,
    )
    most = min(MAX_OUTPUT_TOKENS, info.max_output_tokens or MAX_OUTPUT_TOKENS)
    return msgspec.structs.replace(request, history=[*history, wish], max_output_tokens=most)


def _word_for_word(ctx: TurnContext, history: Sequence[Message]) -> str:
    """What the next step needs exactly: what was asked for in this turn, and the list of what is to be done."""
    sections: list[str] = []
    asked = [run.prompt for run in [ctx.run, *ctx.joined] if run.kind != "summarize" and run.prompt.strip()]
    if asked:
        texts = "\n\n".join(cut_text(prompt, MAX_REQUEST_CHARS // len(asked)) for prompt in asked)
        sections.append(f"## The request being worked on, word for word\n{texts}")
        attached = _attached(history, {run.run_id for run in [ctx.run, *ctx.joined]})
        if attached:
            sections.append(f"Attached to it, and no longer shown: {', '.join(attached)}")
    if todos := _todos(history):
        sections.append(f"## Todo list\n{cut_text(todos, MAX_TODOS_CHARS)}")
    return "\n\n".join(sections)


def _attached(history: Sequence[Message], run_ids: set[str]) -> list[str]:
    parts = [
        part for message in history if message.role == "user" and message.run_id in run_ids for part in message.parts
    ]
    return [part.name if isinstance(part, File) else "an image" for part in parts if isinstance(part, (File, Image))]


def _todos(history: Sequence[Message]) -> str:
    """The last list that the model wrote."""
    for message in reversed(history):
        for part in message.parts:
            if isinstance(part, ToolResult) and part.name == "todos" and not part.is_error:
                return part.content
    return ""


def _has_text(deltas: Sequence[Delta]) -> bool:
    return any(isinstance(delta, TextDelta) and delta.text.strip() for delta in deltas)
