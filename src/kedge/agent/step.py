"""One model step: its message, its attempts, and what it used. Faults that pass are waited out (P8)."""

from __future__ import annotations

import contextlib

from kedge.agent.answer import Answer
from kedge.agent.retry import Attempts, Keys, Retry
from kedge.agent.sizes import size_of_request
from kedge.engine.turn import TurnContext
from kedge.models.client import Models
from kedge.models.cost import usage_of
from kedge.models.errors import ModelError
from kedge.models.values import Endpoint, StepRequest
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
        return Answer(await self._ctx.message(model=self.endpoint.name))

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
