"""Retries of model calls: a limited number of attempts with growing delays, each announced by an event (P8).

A provider's limit and a network that is gone are waited for, with the wait stored in the run (P13). A rejected API key
is looked up once more, or a new login is awaited, and the step continues with the new key.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from typing import Protocol

import msgspec

from kedge.config.schema import ATTENDED_WAIT_S, UNATTENDED_WAIT_S, Config
from kedge.engine.errors import TurnFailed
from kedge.engine.turn import TurnContext
from kedge.models.errors import ConfigError, ModelError, Transient
from kedge.models.providers import BUILT_IN
from kedge.models.values import Endpoint
from kedge.protocol.messages import Message, finish_of
from kedge.protocol.runs import Run, Waiting, WaitReason
from kedge.protocol.text_safety import describe_period


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
    # A longer delay is a limit of the provider: the run waits for it, and its clients see `waiting`.
    max_retry_after_s: float = 60.0
    max_wait_s: float = 0.0  # how long a run waits without an answer; 0: it fails instead
    falls_back: bool = False  # raise `ModelUnavailable` instead of waiting or failing: there may be another model
    # Waits whose end is not known: the shortest and the longest. Each takes as long as all before it.
    limit_wait_s: tuple[float, float] = (60.0, 600.0)
    network_wait_s: tuple[float, float] = (5.0, 60.0)
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    random: Callable[[], float] = random.random

    def delay_s(self, failures: int, retry_after_s: float | None) -> float:
        """Return three times the last delay, half of it random, so that many clients do not retry together."""
        backoff_s = min(self.max_delay_s, self.first_delay_s * 3 ** (failures - 1))
        return max(backoff_s * (0.5 + 0.5 * self.random()), retry_after_s or 0.0)

    def wait_s(self, reason: WaitReason, retry_after_s: float | None, waited_s: float) -> float:
        """Return how long to wait for a limit or the network; a bit longer, so that not all clients return at once."""
        if retry_after_s is not None and retry_after_s > self.max_retry_after_s:
            return retry_after_s + self.random()
        shortest_s, longest_s = self.network_wait_s if reason == "network" else self.limit_wait_s
        if retry_after_s is not None:
            return max(retry_after_s, shortest_s)
        return min(max(waited_s, shortest_s), longest_s)


# Errors that are not temporary, but only this model's or its provider's.
_REFUSALS = ("model_not_found", "quota", "auth")


class ModelUnavailable(Exception):
    """A model reached a limit, is out of order or refused. Another one may do the work."""

    def __init__(self, error: ModelError, endpoint: Endpoint) -> None:
        super().__init__(error.text)
        self.error = error
        self.endpoint = endpoint


def bound_waits(policy: RetryPolicy, config: Config, run: Run) -> RetryPolicy:
    """Return the policy with the longest wait of this run."""
    default_s = ATTENDED_WAIT_S if run.permissions == "ask" else UNATTENDED_WAIT_S
    max_wait_s = default_s if config.agent.max_wait_s is None else config.agent.max_wait_s
    return msgspec.structs.replace(policy, max_wait_s=max_wait_s)


class Attempts:
    def __init__(self, ctx: TurnContext, retry: RetryPolicy, keys: ApiKeys | None = None) -> None:
        self._ctx = ctx
        self._retry = retry
        self._keys = keys
        self._is_key_renewed = False
        self._failures = 0
        self._announced_code = ""  # of the error that the run waits for

    async def prepare_next(self, error: ModelError, endpoint: Endpoint) -> Endpoint:
        """Wait until the next attempt and return its endpoint; raise `TurnFailed` if there is no further attempt."""
        if error.code == "auth" and self._keys is not None:
            renewed = await self._find_key(self._keys, endpoint, error)
            if renewed is not None:
                self._failures += 1
                await self._announce_retry(error, 0.0)
                return renewed
        await self.wait(error, endpoint)
        return endpoint

    async def _find_key(self, keys: ApiKeys, rejected: Endpoint, error: ModelError) -> Endpoint | None:
        is_first, self._is_key_renewed = not self._is_key_renewed, True
        try:
            # Only once: after a second rejected key, a person has to log in.
            renewed = await keys.renew(rejected) if is_first else None
            if renewed is None and self._retry.falls_back:
                raise ModelUnavailable(error, rejected)
            return renewed or await keys.wait_for_login(rejected, error)
        except ConfigError as problem:  # of the command or the keyring with the other key: report both errors
            raise TurnFailed(f"{error.text}; {problem.text}", error.code) from problem

    async def wait(self, error: ModelError, endpoint: Endpoint | None = None) -> None:
        """Wait until the next attempt; raise `TurnFailed` if there is no further attempt."""
        self._failures += 1
        if endpoint is not None and self._retry.falls_back and await self._is_last(error):
            raise ModelUnavailable(error, endpoint)
        if not isinstance(error, Transient):
            raise TurnFailed(error.text, error.code) from error
        if endpoint is not None and await self._wait_for_provider(error, endpoint):
            return
        retry_after_s = error.retry_after_s
        if retry_after_s is not None and retry_after_s > self._retry.max_retry_after_s:
            raise TurnFailed(f"{error.text}; try again in {retry_after_s:.0f} s", error.code) from error
        if self._failures >= self._retry.attempts:
            hint = "; run 'kedge doctor' to find the reason" if error.code == "unreachable" else ""
            raise TurnFailed(f"{error.text} (after {self._failures} attempts){hint}", error.code) from error
        delay_s = self._retry.delay_s(self._failures, retry_after_s)
        await self._announce_retry(error, delay_s)
        await self._retry.sleep(delay_s)

    async def prepare_last(self, error: ModelError, endpoint: Endpoint) -> Endpoint:
        """Wait as after the last attempt and return the endpoint; raise `TurnFailed` if waiting does not help."""
        self._failures = self._retry.attempts - 1
        return await self.prepare_next(error, endpoint)

    async def _is_last(self, error: ModelError) -> bool:
        """Return whether this model is not attempted again without a longer wait."""
        if not isinstance(error, Transient):
            return error.code in _REFUSALS
        if (error.retry_after_s or 0.0) > self._retry.max_retry_after_s or self._failures >= self._retry.attempts:
            return True
        return await self._ctx.waiting_since() is not None

    async def _wait_for_provider(self, error: Transient, endpoint: Endpoint) -> bool:
        """Wait for the end of a limit, or for the network, without a slot; return False if that is not the next thing
        to do. Raises `TurnFailed` if it takes longer than the run may wait."""
        retry, reason = self._retry, _find_wait_reason(error)
        if reason is None or retry.max_wait_s <= 0:
            return False
        is_end_known = error.retry_after_s is not None and error.retry_after_s > retry.max_retry_after_s
        if reason == "overload" and not is_end_known:
            return False
        since = await self._ctx.waiting_since()
        if since is None and not is_end_known and self._failures < retry.attempts:
            return False  # short faults first
        if reason == "network" and not await self._has_answered(endpoint):
            return False
        now = self._ctx.now()
        waited_s = 0.0 if since is None else max(0.0, now - since)
        left_s = retry.max_wait_s - waited_s
        wait_s = retry.wait_s(reason, error.retry_after_s, waited_s)
        if left_s <= 0 or (is_end_known and wait_s > left_s):
            raise TurnFailed(f"{error.text}; {_explain_end(retry, waited_s, now, is_end_known, wait_s)}", error.code)
        waiting = Waiting(reason, now + min(wait_s, left_s))
        if self._announced_code != error.code:
            self._announced_code = error.code
            details = {"delay_s": round(waiting.until - now, 3), "until": waiting.until}
            await self._ctx.append_event(
                "retry", error=error.text, code=error.code, provider_id=endpoint.provider, details=details
            )
        await self._ctx.wait(waiting)
        self._failures = 0
        return True

    async def _has_answered(self, endpoint: Endpoint) -> bool:
        """Whether the address is known to be right: a provider's own, or one that answered in this session. A wrong
        address and a local server that was never started are errors, which waiting does not mend."""
        if any(endpoint.base_url == known.base_url and not known.is_local for known in BUILT_IN):
            return True
        if endpoint.base_url.startswith("local:"):  # a child process of ours, which no network leads to
            return False
        return any(_is_answer_of(endpoint.provider, message) for message in await self._ctx.history())

    async def _announce_retry(self, error: ModelError, delay_s: float) -> None:
        details = {"attempt": self._failures + 1, "of": self._retry.attempts, "delay_s": round(delay_s, 3)}
        await self._ctx.append_event("retry", error=error.text, code=error.code, details=details)


def _find_wait_reason(error: Transient) -> WaitReason | None:
    match error.code:
        case "rate_limited":
            return "usage_limit" if error.is_usage_limit else "rate_limit"
        case "provider_error":
            return "overload"
        case "unreachable":
            return "network"
        case _:
            return None


def _is_answer_of(provider: str, message: Message) -> bool:
    finish = finish_of(message.parts)
    is_finished = finish is not None and finish.reason not in ("canceled", "error", "interrupted")
    return is_finished and (message.model or "").partition("/")[0] == provider


def _explain_end(retry: RetryPolicy, waited_s: float, now: float, is_end_known: bool, wait_s: float) -> str:
    most = f"agent.max_wait_s ({describe_period(retry.max_wait_s)})"
    if is_end_known:
        resets = f"the limit resets {_describe_time(now + wait_s, now)}, in {describe_period(wait_s)}"
        return f"{resets}, which is longer than {most}: run it again then"
    return f"waited for {describe_period(waited_s)}, the most that {most} allows"


def _describe_time(time_s: float, now: float) -> str:
    try:
        then, today = time.localtime(time_s), time.localtime(now)
    except (OverflowError, ValueError, OSError):  # a provider may send any number
        return "never"
    return time.strftime("at %H:%M" if then[:3] == today[:3] else "on %Y-%m-%d at %H:%M", then)
