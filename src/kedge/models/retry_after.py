"""How long a provider asks to wait, in the many ways in which providers say it."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import datetime
from email.utils import parsedate_to_datetime

# The names in which a limit is counted, and the two families of headers that tell of it.
_LIMITS = ("", "-requests", "-tokens", "-input-tokens", "-output-tokens")
_FAMILIES = ("x-ratelimit-{what}{limit}", "anthropic-ratelimit{limit}-{what}")
_PERIOD = re.compile(r"(?:(\d+)h)?(?:(\d+)m(?!s))?(?:([\d.]+)s)?(?:([\d.]+)ms)?")  # "6m0s", "20ms"
_IN_WORDS = re.compile(r"\btry again in ((?:[\d.]+(?:ms|[hms]))+)", re.I)
_EPOCH_S = 1_000_000_000.0  # a number above this is a time of day, not a period


def retry_after_s(headers: Mapping[str, str], now: float) -> float | None:
    """None: it does not say. `headers` has lower-case names; `now` is the time of day, for answers that are dates."""
    for name, unit_s in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        value = _number(headers.get(name, ""))
        if value is not None:
            return value * unit_s
    if "retry-after" in headers:
        return _until_date(headers["retry-after"], now)
    used_up = [
        _until(headers.get(family.format(what="reset", limit=limit), ""), now)
        for family in _FAMILIES
        for limit in _LIMITS
        if _number(headers.get(family.format(what="remaining", limit=limit), "")) == 0
    ]
    return max((wait_s for wait_s in used_up if wait_s is not None), default=None)


def wait_in_words_s(words: str) -> float | None:
    """An event in a stream has no headers; OpenAI's says it in words: "Please try again in 1.5s"."""
    found = _IN_WORDS.search(words)
    return _period_s(found[1]) if found else None


def _until(value: str, now: float) -> float | None:
    """A reset: a period, a number of seconds, a time of day in seconds or milliseconds, or a date."""
    number = _number(value)
    if number is not None:
        if number < _EPOCH_S:
            return number
        return max(0.0, (number if number < _EPOCH_S * 100 else number / 1000) - now)
    if (period_s := _period_s(value.strip())) is not None:
        return period_s
    try:
        return max(0.0, datetime.fromisoformat(value.strip()).timestamp() - now)
    except (ValueError, OverflowError):
        return _until_date(value, now)


def _period_s(value: str) -> float | None:
    match = _PERIOD.fullmatch(value)
    if match is None or not any(match.groups()):
        return None
    parts = [_number(part or "0") or 0.0 for part in match.groups()]
    return parts[0] * 3600 + parts[1] * 60 + parts[2] + parts[3] / 1000


def _until_date(value: str, now: float) -> float | None:
    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - now)
    except (ValueError, OverflowError):
        return None


def _number(value: str) -> float | None:
    try:
        number = float(value)
    except ValueError:
        return None
    return number if number >= 0 and math.isfinite(number) else None
