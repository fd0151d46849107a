"""The models that a run uses instead of its own, if that has reached a limit, is out of order or refused.

A run stays with the model that answered: after a restart its last message tells which one that was. The next run tries
its own model again.
"""

from __future__ import annotations

from collections.abc import Sequence

from kedge.agent.limits import RunLimits
from kedge.agent.retry import ApiKeys, Attempts, ModelUnavailable
from kedge.agent.turn_models import TurnModels
from kedge.engine.errors import TurnFailed
from kedge.engine.turn import TurnContext
from kedge.models.errors import ModelError
from kedge.models.selection.selector import Selection
from kedge.protocol.messages import Message


class ModelChoice:
    """The model that a turn uses: the run's own, or one of `names`, in order."""

    def __init__(
        self, ctx: TurnContext, models: TurnModels, keys: ApiKeys, limits: RunLimits, names: Sequence[str]
    ) -> None:
        self._ctx = ctx
        self._models = models
        self._keys = keys
        self._limits = limits
        self._names = names
        self._own_name = ctx.model  # as the run or its session names it
        self._has_started = False
        self._fallback: Selection | None = None  # the model in use; None: the run's own
        self._position = 0  # of the next fallback
        self._own_failure: ModelUnavailable | None = None  # since the last answer
        self._problems: dict[str, str] = {}  # of each model that cannot be used, since the last answer

    @property
    def falls_back(self) -> bool:
        return bool(self._names)

    async def select(self, history: Sequence[Message]) -> Selection:
        """Return the model to use, ready to be called. Raises `TurnFailed`, and `ModelUnavailable` (see `change`)."""
        if self._fallback is not None:
            return self._fallback
        is_start, self._has_started = not self._has_started, True
        is_first = is_start and len(history) == 1
        own = await self._models.select_large(self._keys, is_first=is_first, falls_back=self.falls_back)
        if is_start:
            self._models.start_title(history, own)
            self._use(await self._find_used(history, own.endpoint.name))
        return self._fallback or own

    async def change(self, failed: ModelUnavailable) -> None:
        """Choose the next model; the run's own, after waiting for it if it has just failed, comes after the last one.

        Raises `TurnFailed` if no model is left and there is nothing to wait for.
        """
        self._limits.recount()  # the step is taken again
        self._problems[failed.endpoint.name] = failed.error.text
        if self._fallback is None:
            self._own_failure = failed
        while self._position < len(self._names):
            name = self._names[self._position]
            self._position += 1
            selection = await self._select(name)
            if isinstance(selection, str):
                self._problems[name] = selection
            elif selection.endpoint.name not in self._problems:
                await self._announce(failed, selection.endpoint.name)
                self._use(selection)
                return
        self._position = 0
        self._use(None)
        if self._own_failure is None:
            await self._announce(failed, "the model of the run")
        else:
            await self._wait_for_own(self._own_failure)

    def note_answer(self) -> None:
        """A model answered: earlier errors do not matter any more."""
        self._problems.clear()
        self._own_failure = None

    def _use(self, selection: Selection | None) -> None:
        self._fallback = selection
        self._ctx.model = self._own_name if selection is None else selection.endpoint.name  # for sub-agents, too

    async def _find_used(self, history: Sequence[Message], own_name: str) -> Selection | None:
        """Return the model that the run already fell back to; None if it uses its own."""
        run_id = self._ctx.run.run_id
        used = next((m.model for m in reversed(history) if m.role == "assistant" and m.run_id == run_id), None)
        if used is None or used == own_name:
            return None
        for position, name in enumerate(self._names):
            selection = await self._select(name)
            if isinstance(selection, Selection) and selection.endpoint.name == used:
                self._position = position + 1
                return selection
        return None

    async def _wait_for_own(self, failure: ModelUnavailable) -> None:
        others = {name: text for name, text in self._problems.items() if name != failure.endpoint.name}
        self.note_answer()
        try:
            await Attempts(self._ctx, self._models.retry, self._keys).prepare_last(failure.error, failure.endpoint)
        except TurnFailed as failed:
            if not others:
                raise
            also = "; ".join(f"{name}: {text}" for name, text in others.items())
            raise TurnFailed(f"{failed}; the fallback models failed, too ({also})", failed.code) from failed

    async def _select(self, name: str) -> Selection | str:
        """Return the model, or why it cannot be used."""
        try:
            selection = await self._models.select_named(name)
            self._limits.check_price(selection.endpoint)
        except ModelError as error:
            return error.text
        except TurnFailed as error:
            return str(error)
        return selection

    async def _announce(self, failed: ModelUnavailable, new: str) -> None:
        old = failed.endpoint.name
        skipped = {name: text for name, text in self._problems.items() if name in self._names and name != old}
        also = "".join(f"; {name} was skipped ({text})" for name, text in skipped.items())
        await self._ctx.append_event(
            "fallback",
            message=f"Going on with {new}, because {old} is not available: {failed.error.text}{also}",
            error=failed.error.text,
            code=failed.error.code,
            provider_id=failed.endpoint.provider,
            details={"from": old, "to": new, "reason": failed.error.code, "skipped": skipped},
        )
