"""Faults that pass are waited out: a bounded number of attempts, further and further apart, each one told (P8). A key
that was refused is looked up once more, and the step goes on with the new one."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Protocol

import msgspec

from kedge.engine.errors import TurnFailed
from kedge.engine.turn import TurnContext
from kedge.models.errors import ConfigError, ModelError, Transient
from kedge.models.values import Endpoint
from kedge.protocol.events import AgentEvent


class Keys(Protocol):
    """Whoever knows of other keys for an endpoint."""

    async def current(self, endpoint: Endpoint) -> Endpoint:
        """The endpoint with the key that holds now."""
        ...

    async def renewed(self, refused: Endpoint) -> Endpoint | None:
        """The endpoint with another key; None: there is no other. Raises `ConfigError` where that cannot be known."""
        ...

    async def after_login(self, refused: Endpoint, error: ModelError) -> Endpoint | None:
        """The same once somebody has logged in; None: nobody is there who could. Raises as `renewed` does."""
        ...


class Retry(msgspec.Struct, frozen=True):
    """How often and how soon: at once for what was a moment's, and up to a quarter of a minute in all, which outlasts a
    restart and most overloads."""

    attempts: int = 5
    first_s: float = 0.5
    most_s: float = 8.0
    # A provider that asks for more patience than this has a limit that a person should know of.
    most_asked_s: float = 60.0
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    random: Callable[[], float] = random.random

    def delay_s(self, failures: int, asked_s: float | None) -> float:
        """Three times as long each time, half of it by chance, so that many do not come back together."""
        backoff_s = min(self.most_s, self.first_s * 3 ** (failures - 1))
        return max(backoff_s * (0.5 + 0.5 * self.random()), asked_s or 0.0)


class Attempts:
    """The attempts at one thing."""

    def __init__(self, ctx: TurnContext, retry: Retry, keys: Keys | None = None) -> None:
        self._ctx = ctx
        self._retry = retry
        self._keys = keys
        self._is_renewed = False
        self._failures = 0

    async def again(self, error: ModelError, endpoint: Endpoint) -> Endpoint:
        """Return the endpoint for the next attempt when it is time for it, or end the turn because there is none."""
        if error.code == "auth" and self._keys is not None:
            renewed = await self._with_another_key(self._keys, endpoint, error)
            if renewed is not None:
                self._failures += 1
                await self._tell(error, 0.0)
                return renewed
        await self.failed(error)
        return endpoint

    async def _with_another_key(self, keys: Keys, refused: Endpoint, error: ModelError) -> Endpoint | None:
        is_first, self._is_renewed = not self._is_renewed, True
        try:
            # Once: a second key that is refused is the last, until a person brings another.
            renewed = await keys.renewed(refused) if is_first else None
            return renewed or await keys.after_login(refused, error)
        except ConfigError as why:  # of the command or the keyring that has the other key: both are worth knowing
            raise TurnFailed(f"{error.text}; {why.text}", error.code) from why

    async def failed(self, error: ModelError) -> None:
        """Return when it is time for the next attempt, or end the turn because there is none."""
        self._failures += 1
        if not isinstance(error, Transient):
            raise TurnFailed(error.text, error.code) from error
        asked_s = error.retry_after_s
        if asked_s is not None and asked_s > self._retry.most_asked_s:
            raise TurnFailed(f"{error.text}; try again in {asked_s:.0f} s", error.code) from error
        if self._failures >= self._retry.attempts:
            more = "; 'kedge doctor' looks for the reason" if error.code == "unreachable" else ""
            raise TurnFailed(f"{error.text} (after {self._failures} attempts){more}", error.code) from error
        delay_s = self._retry.delay_s(self._failures, asked_s)
        await self._tell(error, delay_s)
        await self._retry.sleep(delay_s)

    async def _tell(self, error: ModelError, delay_s: float) -> None:
        details = {"attempt": self._failures + 1, "of": self._retry.attempts, "delay_s": round(delay_s, 3)}
        await self._ctx.append_event(
            AgentEvent(type="retry", run_id="", session_id="", error=error.text, code=error.code, details=details)
        )
