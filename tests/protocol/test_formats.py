"""Amounts that people read: neither a row of zeros nor an exponent."""

from __future__ import annotations

import pytest

from kedge.protocol.text_safety import dollars


@pytest.mark.parametrize(
    ("amount", "written"),
    [
        (0, "$0"),
        (2.0, "$2"),
        (0.5, "$0.5"),
        (12.34567, "$12.3457"),
        (0.0123, "$0.0123"),
        (0.00123456, "$0.0012"),
        (1e-5, "$0.00001"),
        (0.0000123456, "$0.000012"),
    ],
)
def test_an_amount_has_the_digits_that_say_something(amount: float, written: str) -> None:
    assert dollars(amount) == written
