"""Retries of model calls: a limited number of attempts with growing delays, each announced by an event (P8).

A rejected API key is looked up once more, or a new login is awaited, and the step continues with the new key.
"""

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


class ApiKeys(Protocol):
    """Finds API keys for endpoints during a turn."""

    async def refresh(self, endpoint: Endpoint) -> Endpoint:
        """Return the endpoint, with the API key of a newer login if there was one."""
        ...

    async def renew(self, rejected: Endpoint) -> Endpoint | None:
        """Return the endpoint with another API key; None if there is none. Raises `ConfigError`."""
        ...

    async def wait_for_login(self, rejected: Endpoint, error: ModelError) -> Endpoint | None:
        """Return the endpoint with the key of the next login; None if nobody can log in. Raises `TurnFailed`."""
        ...


class RetryPolicy(msgspec.Struct, frozen=True):
    """The number of attempts and their delays: soon after a short fault, and a quarter of a minute in all, which is
    longer than a restart of the provider and most overloads."""

    attempts: int = 5
    first_delay_s: float = 0.5
    max_delay_s: float = 8.0
    # A provider that asks for a longer delay enforces a limit that a person should know about.
    max_retry_after_s: float = 60.0
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    random: Callable[[], float] = random.random

    def delay_s(self, failures: int, retry_after_s: float | None) -> float:
        """Return three times the last delay, half of it random, so that many clients do not retry together."""
        backoff_s = min(self.max_delay_s, self.first_delay_s * 3 ** (failures - 1))
        return max(backoff_s * (0.5 + 0.5 * self.random()), retry_after_s or 0.0)


class Attempts:
    def __init__(self, ctx: TurnContext, retry: RetryPolicy, keys: ApiKeys | None = None) -> None:
        self._ctx = ctx
        self._retry = retry
        self._keys = keys
        self._is_key_renewed = False
        self._failures = 0

    async def prepare_next(self, error: ModelError, endpoint: Endpoint) -> Endpoint:
        """Wait until the next attempt and return its endpoint; raise `TurnFailed` if there is no further attempt."""
        if error.code == "auth" and self._keys is not None:
            renewed = await self._find_key(self._keys, endpoint, error)
            if renewed is not None:
                self._failures += 1
                await self._announce_retry(error, 0.0)
                return renewed
        await self.wait(error)
        return endpoint

    async def _find_key(self, keys: ApiKeys, rejected: Endpoint, error: ModelError) -> Endpoint | None:
        is_first, self._is_key_renewed = not self._is_key_renewed, True
        try:
            # Only once: after a second rejected key, a person has to log in.
            renewed = await keys.renew(rejected) if is_first else None
            return renewed or await keys.wait_for_login(rejected, error)
        except ConfigError as problem:  # of the command or the keyring with the other key: report both errors
            raise TurnFailed(f"{error.text}; {problem.text}", error.code) from problem

    async def wait(self, error: ModelError) -> None:
        """Wait until the next attempt; raise `TurnFailed` if there is no further attempt."""
        self._failures += 1
        if not isinstance(error, Transient):
            raise TurnFailed(error.text, error.code) from error
        retry_after_s = error.retry_after_s
        if retry_after_s is not None and retry_after_s > self._retry.max_retry_after_s:
            raise TurnFailed(f"{error.text}; try again in {retry_after_s:.0f} s", error.code) from error
        if self._failures >= self._retry.attempts:
            hint = "; run 'kedge doctor' to find the reason" if error.code == "unreachable" else ""
            raise TurnFailed(f"{error.text} (after {self._failures} attempts){hint}", error.code) from error
        delay_s = self._retry.delay_s(self._failures, retry_after_s)
        await self._announce_retry(error, delay_s)
        await self._retry.sleep(delay_s)

    async def _announce_retry(self, error: ModelError, delay_s: float) -> None:
        details = {"attempt": self._failures + 1, "of": self._retry.attempts, "delay_s": round(delay_s, 3)}
        await self._ctx.append_event("retry", error=error.text, code=error.code, details=details)
