"""Tokens to dollars, and an honest guess where the provider does not count."""

from __future__ import annotations

import msgspec

from kedge.models.values import ModelInfo, UsageReport
from kedge.protocol.runs import Usage

CHARS_PER_TOKEN = 4  # of English and of code; about right is enough for a guess that is marked as one
_MILLION = 1_000_000


def usage_of(report: UsageReport | None, info: ModelInfo, prompt_chars: int, output_chars: int) -> Usage:
    """What a step used. What the provider does not tell is estimated, and then the whole is marked so.

    A cost of 0.0 means that the price is not known, or that there is none; only the tokens can be estimated.
    """
    told = report or UsageReport()
    if not told.input_tokens and not told.output_tokens and not told.cache_read_tokens and not told.cache_write_tokens:
        told = UsageReport(cost=told.cost)  # servers that do not count say nothing, or zero
    cached = told.cache_read_tokens is not None or told.cache_write_tokens is not None
    is_input_told = told.input_tokens is not None or cached
    usage = Usage(
        input_tokens=told.input_tokens or 0 if is_input_told else estimated_tokens(prompt_chars),
        output_tokens=estimated_tokens(output_chars) if told.output_tokens is None else told.output_tokens,
        cache_read_tokens=told.cache_read_tokens or 0,
        cache_write_tokens=told.cache_write_tokens or 0,
        estimated=not is_input_told or told.output_tokens is None,
    )
    return msgspec.structs.replace(usage, cost=cost_of(usage, info) if told.cost is None else told.cost)


def cost_of(usage: Usage, info: ModelInfo) -> float:
    """In dollars, not rounded. A cache whose price is not known costs what other input does."""
    input_price = info.input_price or 0.0
    read_price = input_price if info.cache_read_price is None else info.cache_read_price
    write_price = input_price if info.cache_write_price is None else info.cache_write_price
    reading = (
        usage.input_tokens * input_price + usage.cache_read_tokens * read_price + usage.cache_write_tokens * write_price
    )
    writing = usage.output_tokens * (info.output_price or 0.0)
    if info.long_prompt_tokens is not None and usage.prompt_tokens > info.long_prompt_tokens:
        reading, writing = reading * info.long_input_factor, writing * info.long_output_factor
    return (reading + writing) / _MILLION


def estimated_tokens(chars: int) -> int:
    """Rounded up: something was said."""
    return -(-chars // CHARS_PER_TOKEN)
