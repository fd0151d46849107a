"""Tokens become dollars, and what is guessed is marked."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kedge.config.schema import ProviderConfig
from kedge.models import providers
from kedge.models.values import ModelInfo, UsageReport, compute_cost, compute_usage, estimate_tokens
from kedge.protocol.runs import Usage

PRICES = ModelInfo(input_price=3.0, output_price=15.0, cache_read_price=0.3, cache_write_price=3.75)
REPORT = UsageReport(input_tokens=1000, output_tokens=200, cache_read_tokens=50_000, cache_write_tokens=4000)
COUNTS = st.integers(0, 10**9)


def test_each_kind_of_token_has_its_price() -> None:
    usage = compute_usage(REPORT, PRICES, 1, 1)
    assert usage == Usage(1000, 200, 50_000, 4000, usage.cost, False)
    assert usage.cost == pytest.approx(0.003 + 0.003 + 0.015 + 0.015)


def test_a_vendors_model_costs_what_the_vendor_says() -> None:
    info = providers.find_model_info("claude-haiku-4-5-20251001", ProviderConfig())
    usage = Usage(input_tokens=1_000_000, output_tokens=1_000_000, cache_read_tokens=0)
    assert compute_cost(usage, info) == pytest.approx(6.0)


def test_a_cache_without_a_price_costs_what_input_does() -> None:
    info = ModelInfo(input_price=2.0, output_price=8.0)
    assert compute_cost(Usage(cache_read_tokens=500_000, cache_write_tokens=500_000), info) == pytest.approx(2.0)
    assert compute_cost(Usage(cache_read_tokens=500_000), ModelInfo(input_price=2.0, cache_read_price=0.0)) == 0.0


def test_a_long_prompt_costs_more_from_the_first_token_above_the_bound() -> None:
    info = ModelInfo(
        input_price=1.0, output_price=1.0, long_prompt_tokens=1000, long_input_factor=2.0, long_output_factor=1.5
    )
    assert compute_cost(Usage(400, 100, 600), info) == pytest.approx(1100e-6)
    assert compute_cost(Usage(401, 100, 600), info) == pytest.approx((1001 * 2 + 150) * 1e-6)


def test_an_unknown_price_is_no_reason_to_doubt_the_tokens() -> None:
    assert compute_usage(REPORT, ModelInfo(), 1, 1) == Usage(1000, 200, 50_000, 4000, 0.0, False)


def test_a_cost_that_the_provider_tells_is_taken() -> None:
    assert compute_usage(UsageReport(input_tokens=1, output_tokens=1, cost=0.25), PRICES, 1, 1).cost == 0.25


@pytest.mark.parametrize("report", [None, UsageReport(), UsageReport(input_tokens=0, output_tokens=0)])
def test_what_nobody_counted_is_estimated_and_marked(report: UsageReport | None) -> None:
    usage = compute_usage(report, PRICES, 4000, 41)
    assert usage == Usage(1000, 11, 0, 0, usage.cost, True)
    assert usage.cost == pytest.approx(compute_cost(usage, PRICES))
    assert usage.cost > 0


def test_half_a_report_is_filled_up_and_marked() -> None:
    begun = UsageReport(input_tokens=5, cache_read_tokens=90)  # the stream broke off before its end
    assert compute_usage(begun, ModelInfo(), 4000, 40) == Usage(5, 10, 90, 0, 0.0, True)
    assert compute_usage(UsageReport(output_tokens=7), ModelInfo(), 4000, 40) == Usage(1000, 7, 0, 0, 0.0, True)


@given(COUNTS, COUNTS, COUNTS, COUNTS)
def test_no_step_costs_less_than_nothing_or_loses_a_token(read: int, written: int, cached: int, stored: int) -> None:
    report = UsageReport(input_tokens=read, output_tokens=written, cache_read_tokens=cached, cache_write_tokens=stored)
    usage = compute_usage(report, PRICES, 0, 0)
    assert usage.cost >= 0
    assert usage.prompt_tokens == read + cached + stored
    assert usage.output_tokens == written


@given(st.integers(0, 10**9), st.integers(0, 10**9))
def test_more_text_is_never_estimated_as_less(chars: int, more: int) -> None:
    assert estimate_tokens(chars) <= estimate_tokens(chars + more)
    assert (estimate_tokens(chars) == 0) == (chars == 0)
