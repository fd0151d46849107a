"""A prompt's turn: one model step, and one more for each time that prompts joined it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from datetime import date

from kedge.agent.answer import Answer
from kedge.agent.retry import Attempts, Retry
from kedge.agent.system import system_prompt
from kedge.config.schema import Config
from kedge.engine.turn import TurnContext
from kedge.models.choose import Chooser
from kedge.models.client import Models
from kedge.models.credentials import Credentials
from kedge.models.errors import ModelError
from kedge.models.values import Endpoint, StepRequest
from kedge.protocol.messages import Message, finish_of, text_of

_STEP_ENDS = frozenset({"end_turn", "max_tokens", "content_filter", "unknown"})


class PromptTurn:
    def __init__(
        self,
        models: Models,
        *,
        environ: Mapping[str, str],
        retry: Retry,
        today: Callable[[], date],
    ) -> None:
        self._models = models
        self._chooser = Chooser(Credentials())
        self._environ = environ
        self._retry = retry
        self._today = today

    async def __call__(self, ctx: TurnContext) -> None:
        endpoint: Endpoint | None = None
        while True:
            history = await ctx.history()
            # A step that was committed before a crash is not taken again (P13).
            if not _is_answered(history, ctx.run.run_id):
                endpoint = endpoint or await self._endpoint(ctx)
                await self._step(ctx, endpoint, history)
            if not await ctx.join():
                return

    async def _endpoint(self, ctx: TurnContext) -> Endpoint:
        attempts = Attempts(ctx, self._retry)
        while True:
            try:
                env = self._environ if ctx.env is None else ctx.env
                chosen = await self._chooser.large(ctx.run.model, env, Config())
                return await self._models.named(chosen.endpoint)
            except ModelError as error:
                await attempts.failed(error)

    async def _step(self, ctx: TurnContext, endpoint: Endpoint, history: list[Message]) -> None:
        system = system_prompt(ctx.directory, self._today())
        request = StepRequest(system=system, history=history)
        attempts = Attempts(ctx, self._retry)
        # The message is there before the model speaks, so that its first word is shown at once. An attempt that fails
        # without a word leaves it to the next one.
        answer = Answer(await ctx.message(model=endpoint.name))
        while True:
            try:
                async with contextlib.aclosing(self._models.stream(endpoint, request)) as groups:
                    async for deltas in groups:
                        await answer.write(deltas)
                break
            except ModelError as error:
                is_spoilt = answer.length > 0
                if is_spoilt:
                    await answer.interrupt(error.text)
                await attempts.failed(error)
                if is_spoilt:
                    answer = Answer(await ctx.message(model=endpoint.name))
        await answer.finish(lambda: len(system) + sum(len(text_of(message.parts)) for message in history))


def _is_answered(history: list[Message], run_id: str) -> bool:
    """Does the conversation end with a whole step of this turn?"""
    if not history or history[-1].role != "assistant" or history[-1].run_id != run_id:
        return False
    finish = finish_of(history[-1].parts)
    return finish is not None and finish.reason in _STEP_ENDS
