"""What Google says beside the words of an error, in `error.details`: why it is one, and how long to wait."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, cast

import msgspec

from kedge.models.counts import fields_of

WAIT = "retry_info"  # the code of an error that names a time to wait: whatever its words are, waiting helps

_PERIOD = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)s")  # "34.074824224s"


def codes_of(error: dict[str, Any]) -> set[str]:
    """Reasons in small letters. The same words and the same code tell of a minute's quota, for which one waits, and of
    a day's, for which nobody does."""
    details = list(_details(error))
    codes = {str(detail["reason"]).lower() for detail in details if detail.get("reason")}
    if any("PerDay" in str(detail.get("violations")) for detail in details):
        return {*codes, "insufficient_quota"}
    return {*codes, WAIT} if _delay_s(details) is not None else codes


def retry_delay_s(body: bytes) -> float | None:
    """How long the answer asks to wait; None: it does not."""
    try:
        told: Any = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    error = fields_of(cast("list[Any]", told)[0] if isinstance(told, list) and told else told).get("error")
    return _delay_s(list(_details(fields_of(error))))


def _delay_s(details: list[dict[str, Any]]) -> float | None:
    found = (_PERIOD.fullmatch(str(detail.get("retryDelay", ""))) for detail in details)
    return max((float(period[1]) for period in found if period), default=None)


def _details(error: dict[str, Any]) -> Iterator[dict[str, Any]]:
    details = error.get("details")
    if isinstance(details, list):
        yield from (cast("dict[str, Any]", each) for each in cast("list[Any]", details) if isinstance(each, dict))
