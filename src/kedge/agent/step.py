"""One model step: its message, its attempts and its usage; and the limits on a run's steps and cost."""

from __future__ import annotations

import contextlib

from kedge.agent.delta_writer import DeltaWriter
from kedge.agent.history_size import count_request_chars
from kedge.agent.retry import ApiKeys, Attempts, RetryPolicy
from kedge.config.schema import Config
from kedge.engine.errors import TurnFailed
from kedge.engine.turn import TurnContext
from kedge.models.client import ModelClient
from kedge.models.cost import compute_usage
from kedge.models.errors import ModelError
from kedge.models.values import Endpoint, StepRequest
from kedge.protocol.formats import dollars
from kedge.protocol.messages import FinishReason
from kedge.protocol.runs import Usage

_FINISH_NOTES: dict[FinishReason, str] = {
    "max_tokens": "the answer was cut off at the model's output limit",
    "content_filter": "the provider's content filter stopped the answer",
}


class ContextFull(Exception):
    """The conversation is too long for the model; `error` is the provider's."""

    def __init__(self, error: ModelError) -> None:
        super().__init__(error.text)
        self.error = error


class StepRunner:
    """Runs the steps of one turn."""

    def __init__(
        self, ctx: TurnContext, models: ModelClient, endpoint: Endpoint, retry: RetryPolicy, keys: ApiKeys
    ) -> None:
        self.endpoint = endpoint
        self._ctx = ctx
        self._models = models
        self._retry = retry
        self._keys = keys

    async def run(self, request: StepRequest) -> None:
        """Call the model, with retries (P8). Raises `TurnFailed`, and `ContextFull` if a shorter request could work."""
        attempts = Attempts(self._ctx, self._retry, self._keys)
        self.endpoint = await self._keys.refresh(self.endpoint)
        # The message exists before the model responds, so that its first text is shown at once. An attempt that fails
        # before any text leaves the message to the next attempt.
        writer = await self._begin_message()
        while True:
            try:
                await self._stream(writer, request)
                break
            except ModelError as error:
                is_full = error.code == "context_too_long"
                is_used_up = writer.has_parts or is_full
                if is_used_up:
                    usage = self._usage(writer, request) if writer.has_parts else None
                    await writer.interrupt(error.text, usage)
                if is_full:
                    raise ContextFull(error) from error
                self.endpoint = await attempts.prepare_next(error, self.endpoint)
                if is_used_up:
                    writer = await self._begin_message()
        await writer.finish(self._usage(writer, request), _FINISH_NOTES.get(writer.reason))

    async def _begin_message(self) -> DeltaWriter:
        return DeltaWriter(await self._ctx.begin_message(model=self.endpoint.name))

    async def _stream(self, writer: DeltaWriter, request: StepRequest) -> None:
        async with contextlib.aclosing(self._models.stream(self.endpoint, request)) as groups:
            async for deltas in groups:
                await writer.write(deltas)

    def _usage(self, writer: DeltaWriter, request: StepRequest) -> Usage:
        """Return the reported usage, with an estimate where the provider reports none."""
        report = writer.usage
        is_reported = report is not None and bool(report.input_tokens or report.cache_read_tokens)
        chars = 0 if is_reported else count_request_chars(request)
        return compute_usage(report, self.endpoint.info, chars, writer.length)


class RunLimits:
    """The limits on a run's steps and cost, checked before each step.

    Creating it raises `TurnFailed` for a cost limit on a model of unknown price: it could never take effect.
    """

    def __init__(self, ctx: TurnContext, config: Config, endpoint: Endpoint) -> None:
        self._ctx = ctx
        self._max_steps = int(ctx.options.max_steps or 0) or config.agent.max_steps
        self._max_cost = ctx.options.max_cost or config.agent.max_cost
        self._steps: int | None = None
        if self._max_cost is not None and endpoint.info.input_price is None and not endpoint.is_local:
            raise TurnFailed(
                f"The price of {endpoint.name} is unknown, so its cost cannot be limited. Set input_price and"
                f' output_price in [providers.{endpoint.provider}.models."{endpoint.model}"], or use --max-steps',
                "bad_config",
            )

    async def check(self) -> None:
        """Count a step; raise `TurnFailed` if the run may not take it."""
        if self._steps is None:  # steps of earlier attempts of this run count (P13)
            self._steps = await self._ctx.steps()
        if self._steps >= self._max_steps:
            raise TurnFailed(
                f"Stopped after {_format_steps(self._steps)}, the limit of --max-steps or agent.max_steps."
                " The work so far is kept, and you can continue the session.",
                "max_steps",
            )
        if self._max_cost is not None and (cost := (await self._ctx.usage()).cost) >= self._max_cost:
            raise TurnFailed(
                f"Stopped at a cost of {dollars(cost)}; the limit is {dollars(self._max_cost)}"
                " (--max-cost, agent.max_cost). The work so far is kept, and you can continue the session.",
                "max_cost",
            )
        self._steps += 1


def _format_steps(count: int) -> str:
    return "1 step" if count == 1 else f"{count} steps"
