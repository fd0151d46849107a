"""BadRule: a permission rule that cannot be read. It names the rule and what is expected instead."""

from __future__ import annotations


class BadRule(ValueError):
    def __init__(self, rule: str, expected: str) -> None:
        super().__init__(f"The permission rule {rule!r} cannot be used: {expected}")
        self.rule = rule
        self.expected = expected
