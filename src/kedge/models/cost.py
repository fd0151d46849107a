"""Usage and cost of a step, estimated if the provider does not report it."""

from __future__ import annotations

import msgspec

from kedge.models.values import ModelInfo, UsageReport
from kedge.protocol.runs import Usage

CHARS_PER_TOKEN = 4  # of English and of code; good enough for a value marked as estimated
_MILLION = 1_000_000


def compute_usage(report: UsageReport | None, info: ModelInfo, prompt_chars: int, output_chars: int) -> Usage:
    """Return the usage of a step. Missing counts are estimated from the characters, and then `estimated` is set.

    A cost of 0.0 means that the price is zero or not known.
    """
    known = report or UsageReport()
    if not (known.input_tokens or known.output_tokens or known.cache_read_tokens or known.cache_write_tokens):
        known = UsageReport(cost=known.cost)  # servers that do not count report nothing, or zero
    cached = known.cache_read_tokens is not None or known.cache_write_tokens is not None
    is_input_known = known.input_tokens is not None or cached
    usage = Usage(
        input_tokens=known.input_tokens or 0 if is_input_known else estimate_tokens(prompt_chars),
        output_tokens=estimate_tokens(output_chars) if known.output_tokens is None else known.output_tokens,
        cache_read_tokens=known.cache_read_tokens or 0,
        cache_write_tokens=known.cache_write_tokens or 0,
        estimated=not is_input_known or known.output_tokens is None,
    )
    return msgspec.structs.replace(usage, cost=compute_cost(usage, info) if known.cost is None else known.cost)


def compute_cost(usage: Usage, info: ModelInfo) -> float:
    """Return dollars, not rounded. Cached tokens without a known price cost as much as other input."""
    input_price = info.input_price or 0.0
    read_price = input_price if info.cache_read_price is None else info.cache_read_price
    write_price = input_price if info.cache_write_price is None else info.cache_write_price
    input_cost = (
        usage.input_tokens * input_price + usage.cache_read_tokens * read_price + usage.cache_write_tokens * write_price
    )
    output_cost = usage.output_tokens * (info.output_price or 0.0)
    if info.long_prompt_tokens is not None and usage.prompt_tokens > info.long_prompt_tokens:
        input_cost, output_cost = input_cost * info.long_input_factor, output_cost * info.long_output_factor
    return (input_cost + output_cost) / _MILLION


def estimate_tokens(chars: int) -> int:
    """Round up: a short text has at least one token."""
    return -(-chars // CHARS_PER_TOKEN)
