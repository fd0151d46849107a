"""One model step: its message, its attempts, and what it used. Faults that pass are waited out (P8)."""

from __future__ import annotations

import contextlib

from kedge.agent.delta_writer import Answer
from kedge.agent.history_size import size_of_request
from kedge.agent.retry import Attempts, Keys, Retry
from kedge.config.schema import Config
from kedge.engine.errors import TurnFailed
from kedge.engine.turn import TurnContext
from kedge.models.client import Models
from kedge.models.cost import usage_of
from kedge.models.errors import ModelError
from kedge.models.values import Endpoint, StepRequest
from kedge.protocol.formats import dollars
from kedge.protocol.messages import FinishReason
from kedge.protocol.runs import Usage

_TOLD: dict[FinishReason, str] = {
    "max_tokens": "the answer was cut off at the model's output limit",
    "content_filter": "the provider's content filter stopped the answer",
}


class ContextFull(Exception):
    """The conversation is too long for the model; `error` is what the provider says."""

    def __init__(self, error: ModelError) -> None:
        super().__init__(error.text)
        self.error = error


class Steps:
    """The steps of one turn."""

    def __init__(self, ctx: TurnContext, models: Models, endpoint: Endpoint, retry: Retry, keys: Keys) -> None:
        self.endpoint = endpoint
        self._ctx = ctx
        self._models = models
        self._retry = retry
        self._keys = keys

    async def take(self, request: StepRequest) -> None:
        """Raises `TurnFailed` where no further attempt helps, and `ContextFull` where less to read would."""
        attempts = Attempts(self._ctx, self._retry, self._keys)
        self.endpoint = await self._keys.current(self.endpoint)
        # The message is there before the model speaks, so that its first word is shown at once. An attempt that fails
        # without a word leaves it to the next one.
        answer = await self._begun()
        while True:
            try:
                await self._attempt(answer, request)
                break
            except ModelError as error:
                is_full = error.code == "context_too_long"
                is_spoilt = answer.has_parts or is_full
                if is_spoilt:
                    used = self._used(answer, request) if answer.has_parts else None
                    await answer.interrupt(error.text, used)
                if is_full:
                    raise ContextFull(error) from error
                self.endpoint = await attempts.again(error, self.endpoint)
                if is_spoilt:
                    answer = await self._begun()
        await answer.finish(self._used(answer, request), _TOLD.get(answer.reason))

    async def _begun(self) -> Answer:
        return Answer(await self._ctx.begin_message(model=self.endpoint.name))

    async def _attempt(self, answer: Answer, request: StepRequest) -> None:
        async with contextlib.aclosing(self._models.stream(self.endpoint, request)) as groups:
            async for deltas in groups:
                await answer.write(deltas)

    def _used(self, answer: Answer, request: StepRequest) -> Usage:
        """Counted by us only where the provider does not."""
        chars = 0 if _is_told(answer) else size_of_request(request)
        return usage_of(answer.usage, self.endpoint.info, chars, answer.length)


def _is_told(answer: Answer) -> bool:
    return answer.usage is not None and bool(answer.usage.input_tokens or answer.usage.cache_read_tokens)


class Limits:
    """Raises where a limit could never hold: a script that counts on it must not find out by the bill."""

    def __init__(self, ctx: TurnContext, config: Config, endpoint: Endpoint) -> None:
        self._ctx = ctx
        self._max_steps = int(ctx.options.max_steps or 0) or config.agent.max_steps
        self._max_cost = ctx.options.max_cost or config.agent.max_cost
        self._steps: int | None = None
        if self._max_cost is not None and endpoint.info.input_price is None and not endpoint.is_local:
            raise TurnFailed(
                f"the price of {endpoint.name} is not known, so a limit on its cost cannot hold; set input_price and"
                f' output_price in [providers.{endpoint.provider}.models."{endpoint.model}"], or use --max-steps',
                "bad_config",
            )

    async def check(self) -> None:
        """Before a step: raises where there may be no further one."""
        if self._steps is None:  # what an earlier attempt of this run has done counts (P13)
            self._steps = await self._ctx.steps()
        if self._steps >= self._max_steps:
            raise TurnFailed(
                f"stopped after {_steps(self._steps)}, which is the limit (--max-steps, agent.max_steps);"
                " what was done so far stays, and the session can be continued",
                "max_steps",
            )
        if self._max_cost is not None and (cost := (await self._ctx.usage()).cost) >= self._max_cost:
            raise TurnFailed(
                f"stopped at a cost of {dollars(cost)}; the limit is {dollars(self._max_cost)}"
                " (--max-cost, agent.max_cost); what was done so far stays, and the session can be continued",
                "max_cost",
            )
        self._steps += 1


def _steps(count: int) -> str:
    return "1 step" if count == 1 else f"{count} steps"
