"""A provider's wish to wait is understood, however it is said."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kedge.models.wires.provider_errors import parse_retry_after

NOW = 1_000_000_000.0  # 2001-09-09T01:46:40Z


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({}, None),
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": "0.5"}, 0.5),
        ({"retry-after": "7", "retry-after-ms": "250"}, 0.25),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "-3"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after": "Sun, 09 Sep 2001 01:47:10 GMT"}, 30.0),
        ({"retry-after": "Sun, 09 Sep 2001 01:46:10 GMT"}, 0.0),
    ],
)
def test_a_wish_to_wait_is_understood(headers: dict[str, str], expected: float | None) -> None:
    assert parse_retry_after(headers, NOW) == expected


@pytest.mark.parametrize(
    ("reset", "expected"),
    [
        ("6m0s", 360.0),
        ("1h2m3.5s", 3723.5),
        ("20ms", 0.02),
        ("1.5s", 1.5),
        ("12", 12.0),
        ("1000000030", 30.0),
        ("1000000030000", 30.0),
        ("2001-09-09T01:47:10Z", 30.0),
        ("2001-09-09T03:46:50+02:00", 10.0),
        ("2001-09-09T01:46:00Z", 0.0),
        ("whenever", None),
        ("", None),
    ],
)
def test_the_reset_of_a_limit_that_is_used_up_is_a_wish_to_wait(reset: str, expected: float | None) -> None:
    openai = {"x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": reset}
    anthropic = {
        "anthropic-ratelimit-input-tokens-remaining": "0",
        "anthropic-ratelimit-input-tokens-reset": reset,
    }
    gateway = {"x-ratelimit-remaining": "0", "x-ratelimit-reset": reset}
    for headers in (openai, anthropic, gateway):
        assert parse_retry_after(headers, NOW) == expected


def test_of_several_limits_the_last_to_be_lifted_counts_and_those_with_room_do_not() -> None:
    headers = {
        "x-ratelimit-remaining-requests": "0",
        "x-ratelimit-reset-requests": "2s",
        "x-ratelimit-remaining-tokens": "0",
        "x-ratelimit-reset-tokens": "5s",
        "x-ratelimit-remaining": "3",
        "x-ratelimit-reset": "900",
    }
    assert parse_retry_after(headers, NOW) == 5.0
    assert parse_retry_after({**headers, "retry-after": "1"}, NOW) == 1.0


@given(st.dictionaries(st.sampled_from(["retry-after", "retry-after-ms", "x-ratelimit-reset"]), st.text()))
def test_no_header_breaks_the_reading(headers: dict[str, str]) -> None:
    wait_s = parse_retry_after({**headers, "x-ratelimit-remaining": "0"}, NOW)
    assert wait_s is None or wait_s >= 0
