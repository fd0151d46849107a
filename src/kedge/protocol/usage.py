"""Tokens and money: of a step, a run, or a session."""

from __future__ import annotations

import msgspec


class Usage(msgspec.Struct, frozen=True):
    """Each token is counted once: `input_tokens` are those that came from no cache and went to none."""

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    cost: float = 0.0  # in dollars
    estimated: bool = False

    @property
    def prompt_tokens(self) -> int:
        """All that the model read, wherever it came from."""
        return self.input_tokens + self.cache_read_tokens + self.cache_write_tokens

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.cache_read_tokens + other.cache_read_tokens,
            self.cache_write_tokens + other.cache_write_tokens,
            self.cost + other.cost,
            self.estimated or other.estimated,
        )
