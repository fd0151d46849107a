"""When a client comes back after a drop, and when it gives up."""

from __future__ import annotations

import pytest

from kedge.client.reconnect import FIRST_S, MOST_S, ReconnectPolicy, random_fraction


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def delays(policy: ReconnectPolicy, clock: Clock, count: int) -> list[float | None]:
    found: list[float | None] = []
    for _ in range(count):
        delay_s = policy.next_delay_s()
        found.append(delay_s)
        clock.now += delay_s or 0.0
    return found


def test_delays_double_up_to_a_limit() -> None:
    clock = Clock()
    found = delays(ReconnectPolicy(clock=clock, random=lambda: 1.0), clock, 9)
    assert found == [FIRST_S * 2**n for n in range(7)] + [MOST_S, MOST_S]


@pytest.mark.parametrize(("draw", "part"), [(0.0, 0.5), (0.5, 0.75), (1.0, 1.0)])
def test_chance_decides_how_much_of_a_delay_is_waited(draw: float, part: float) -> None:
    assert ReconnectPolicy(clock=Clock(), random=lambda: draw).next_delay_s() == pytest.approx(FIRST_S * part)


def test_it_gives_up_when_nothing_answered_for_a_minute_and_not_before() -> None:
    clock = Clock()
    policy = ReconnectPolicy(clock=clock, random=lambda: 1.0)
    found = delays(policy, clock, 100)
    tries = found.index(None)
    assert sum(delay_s or 0.0 for delay_s in found) == pytest.approx(60.0)
    assert all(delay_s is None for delay_s in found[tries:])


def test_an_answer_starts_the_minute_again_but_a_server_that_only_answers_is_not_asked_faster() -> None:
    clock = Clock()
    policy = ReconnectPolicy(clock=clock, random=lambda: 1.0)
    delays(policy, clock, 9)
    clock.now += 59.0
    policy.record_contact()
    assert policy.next_delay_s() == MOST_S
    clock.now += 59.0
    assert policy.next_delay_s() is not None


def test_after_progress_the_next_drop_is_tried_again_at_once() -> None:
    clock = Clock()
    policy = ReconnectPolicy(clock=clock, random=lambda: 1.0)
    delays(policy, clock, 9)
    policy.record_progress()
    assert policy.next_delay_s() == FIRST_S


def test_a_thousand_failures_do_not_overflow() -> None:
    policy = ReconnectPolicy(clock=Clock(), random=lambda: 1.0)
    assert [policy.next_delay_s() for _ in range(2000)][-1] == MOST_S


def test_chance_is_a_number_from_zero_to_one() -> None:
    draws = [random_fraction() for _ in range(100)]
    assert all(0.0 <= draw <= 1.0 for draw in draws)
    assert len(set(draws)) > 50
