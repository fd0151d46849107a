"""Attempts are bounded and told, and a rejected key is looked up once more inside the same run (P8)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest

from kedge.agent.retry import Attempts, RetryPolicy
from kedge.engine.errors import TurnFailed
from kedge.engine.turn import TurnContext
from kedge.models.errors import ConfigError, ModelError, Refused, Transient
from kedge.models.values import Endpoint
from kedge.protocol.events import AgentEvent, AgentEventType

OLD = Endpoint(provider="openai", model="m", base_url="http://h/v1", api_key="old.planted.key")
NEW = Endpoint(provider="openai", model="m", base_url="http://h/v1", api_key="new.planted.key")
REFUSED = Refused("auth", "h answered 401: the key was rejected; check OPENAI_API_KEY")
Renew = Callable[[Endpoint], Awaitable[Endpoint | None]]
BUSY = Transient("rate_limited", "h answered 429", 3.0)


class Told:
    """The one thing that attempts ask of a turn: to tell."""

    def __init__(self) -> None:
        self.events: list[AgentEvent] = []
        self.delays: list[float] = []

    async def append_event(self, type: AgentEventType, **fields: Any) -> None:
        self.events.append(AgentEvent(type=type, run_id="r", session_id="s", **fields))

    async def sleep(self, delay_s: float) -> None:
        self.delays.append(delay_s)

    def attempts(self, renew: Renew | None = None, logged_in: Endpoint | ConfigError | None = None) -> Attempts:
        keys = renew and KnownKeys(renew, logged_in)
        return Attempts(cast("TurnContext", self), RetryPolicy(sleep=self.sleep, random=lambda: 1.0), keys)


class KnownKeys:
    """Whoever knows of other keys, with what a person brings, which is the same each time."""

    def __init__(self, renew: Renew, logged_in: Endpoint | ConfigError | None) -> None:
        self._renew = renew
        self._logged_in = logged_in

    async def refresh(self, endpoint: Endpoint) -> Endpoint:
        return endpoint

    async def renew(self, rejected: Endpoint) -> Endpoint | None:
        return await self._renew(rejected)

    async def wait_for_login(self, rejected: Endpoint, error: ModelError) -> Endpoint | None:
        assert error.code == "auth"
        if isinstance(self._logged_in, ConfigError):
            raise self._logged_in
        return self._logged_in


async def renew_to_new(endpoint: Endpoint) -> Endpoint | None:
    assert endpoint is OLD
    return NEW


async def renew_to_nothing(endpoint: Endpoint) -> Endpoint | None:
    return None


async def test_a_refused_key_is_renewed_and_the_next_attempt_told() -> None:
    told = Told()
    assert await told.attempts(renew_to_new).prepare_next(REFUSED, OLD) is NEW
    assert [(event.type, event.code, event.details) for event in told.events] == [
        ("retry", "auth", {"attempt": 2, "of": 5, "delay_s": 0.0})
    ]
    assert told.delays == []
    assert "planted" not in repr(told.events)


async def test_a_key_is_renewed_once_in_a_step() -> None:
    told = Told()
    attempts = told.attempts(renew_to_new)
    endpoint = await attempts.prepare_next(REFUSED, OLD)
    endpoint = await attempts.prepare_next(BUSY, endpoint)  # other faults in between do not give another chance
    assert endpoint is NEW
    with pytest.raises(TurnFailed) as caught:
        await attempts.prepare_next(REFUSED, endpoint)
    assert (caught.value.text, caught.value.code) == (REFUSED.text, "auth")
    assert len(told.events) == 2


@pytest.mark.parametrize("renew", [None, renew_to_nothing])
async def test_without_another_key_the_run_fails_at_once(renew: Renew | None) -> None:
    told = Told()
    with pytest.raises(TurnFailed) as caught:
        await told.attempts(renew).prepare_next(REFUSED, OLD)
    assert (caught.value.text, caught.value.code) == (REFUSED.text, "auth")
    assert told.events == []


async def test_a_person_is_waited_for_after_the_one_renewal_and_as_often_as_they_bring_a_key() -> None:
    told = Told()
    attempts = told.attempts(renew_to_nothing, NEW)
    for _ in range(7):
        assert await attempts.prepare_next(REFUSED, OLD) is NEW
    assert [event.type for event in told.events] == ["retry"] * 7


async def test_a_command_that_fails_now_is_told_with_the_refusal() -> None:
    async def renew(endpoint: Endpoint) -> Endpoint | None:
        raise ConfigError("bad_config", "the api_key_command of provider 'openai' failed with exit code 3")

    with pytest.raises(TurnFailed) as caught:
        await Told().attempts(renew).prepare_next(REFUSED, OLD)
    assert "check OPENAI_API_KEY; the api_key_command of provider 'openai' failed" in caught.value.text
    assert caught.value.code == "auth"


async def test_a_keyring_that_does_not_give_the_key_of_a_login_is_told_with_the_refusal() -> None:
    locked = ConfigError("bad_config", "the keyring cannot be used (it is locked)")
    with pytest.raises(TurnFailed, match=r"the key was rejected; .*; the keyring cannot be used") as caught:
        await Told().attempts(renew_to_nothing, locked).prepare_next(REFUSED, OLD)
    assert caught.value.code == "auth"


@pytest.mark.parametrize(
    "error", [Refused("quota", "q"), Refused("context_too_long", "c"), ConfigError("bad_config", "b")]
)
async def test_a_new_key_is_not_looked_for_where_it_would_not_help(error: ModelError) -> None:
    async def renew(endpoint: Endpoint) -> Endpoint | None:
        raise AssertionError

    with pytest.raises(TurnFailed) as caught:
        await Told().attempts(renew).prepare_next(error, OLD)
    assert caught.value.code == error.code


async def test_what_passes_is_waited_out_on_the_same_endpoint() -> None:
    told = Told()
    attempts = told.attempts(renew_to_new)
    for _ in range(4):
        assert await attempts.prepare_next(BUSY, OLD) is OLD
    assert told.delays == [3.0, 3.0, 4.5, 8.0]
    with pytest.raises(TurnFailed, match="after 5 attempts"):
        await attempts.prepare_next(BUSY, OLD)
