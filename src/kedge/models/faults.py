"""Which fault an error answer tells of: the same words for every OpenAI-compatible server, and never a key in them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Any, cast

import msgspec

from kedge.models.errors import Code, ModelError, Refused, Transient
from kedge.models.values import Endpoint

MAX_WORDS = 500  # of a provider's explanation: enough to act on

_CONTEXT_CODES = frozenset({"context_length_exceeded", "string_above_max_length", "request_too_large"})
_CONTEXT_WORDS = re.compile(r"context (length|window|size)|maximum context|too many tokens|prompt is too long", re.I)
_QUOTA_CODES = frozenset({"insufficient_quota", "billing_hard_limit_reached", "billing_not_active"})
_FILTER_CODES = frozenset({"content_filter", "content_policy_violation", "responsibleaipolicyviolation"})
_AUTH_CODES = frozenset({"invalid_api_key", "authentication_error", "permission_error"})
_RATE_CODES = frozenset({"rate_limit_exceeded", "rate_limit_error", "429"})
_TRANSIENT_CODES = frozenset({"server_error", "api_error", "overloaded_error", "internal_error", "timeout", "error"})
_KEY_LIKE = re.compile(r"\b(?:sk|pk|rk|key|Bearer)[-_ ][\w*.-]{8,}")
_HINTS: dict[Code, str] = {
    "auth": "the key was refused; check OPENAI_API_KEY",
    "model_not_found": "check the model's name and OPENAI_BASE_URL",
    "context_too_long": "the conversation is too long for this model; start a new session",
    "quota": "the account has no quota left; check its billing",
    "content_filter": "the provider's content filter refused the request",
}


def fault_of_answer(endpoint: Endpoint, status: int, headers: Mapping[str, str], body: bytes, now: float) -> ModelError:
    """The fault of an answer with an error status; `now` is the time of day, for a `Retry-After` that is a date."""
    codes, words = _explanation(body, endpoint.api_key)
    code = _code_of_words(codes, words) or _code_of_status(status)
    if code == "auth" and status == 401:
        words = ""  # providers repeat half of the key here
    said = f"{endpoint.host} answered {status}"
    text = f"{said} ({words})" if words else said
    if hint := _HINTS.get(code):
        text = f"{text}: {hint}"
    if code in ("rate_limited", "provider_error"):
        return Transient(code, text, retry_after_s(headers, now))
    return Refused(code, text)


def fault_of_event(data: bytes, key: str | None) -> ModelError:
    """The fault that an event in the middle of a stream tells of. Without a known word the provider is at fault."""
    codes, words = _explanation(data, key)
    code = _code_of_words(codes, words) or _code_of_number(codes) or "provider_error"
    text = f"the provider broke off: {words}" if words else "the provider broke off without saying why"
    if hint := _HINTS.get(code):
        text = f"{text}: {hint}"
    return Transient(code, text) if code in ("rate_limited", "provider_error") else Refused(code, text)


def retry_after_s(headers: Mapping[str, str], now: float) -> float | None:
    """How long the provider asks to wait. `headers` has lower-case names."""
    for name, unit_s in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        try:
            value = float(headers[name]) * unit_s
        except (KeyError, ValueError):
            continue
        if 0 <= value < float("inf"):
            return value
    try:
        return max(0.0, parsedate_to_datetime(headers["retry-after"]).timestamp() - now)
    except (KeyError, ValueError):
        return None


def _code_of_words(codes: set[str], words: str) -> Code | None:
    if codes & _CONTEXT_CODES or _CONTEXT_WORDS.search(words):
        return "context_too_long"
    if codes & _QUOTA_CODES:
        return "quota"
    if codes & _FILTER_CODES:
        return "content_filter"
    if codes & _AUTH_CODES:
        return "auth"
    if "model_not_found" in codes:
        return "model_not_found"
    if codes & _RATE_CODES:
        return "rate_limited"
    return "provider_error" if codes & _TRANSIENT_CODES else None


def _code_of_number(codes: set[str]) -> Code | None:
    numbers = [int(code) for code in codes if re.fullmatch(r"[45]\d\d", code)]
    return _code_of_status(numbers[0]) if numbers else None


def _code_of_status(status: int) -> Code:
    match status:
        case 401 | 403:
            return "auth"
        case 402:
            return "quota"
        case 404:
            return "model_not_found"
        case 413:
            return "context_too_long"
        case 429:
            return "rate_limited"
        case 408 | 409:
            return "provider_error"
        case _ if status >= 500:
            return "provider_error"
        case _ if 300 <= status < 400:
            return "bad_response"
        case _:
            return "bad_request"


def _explanation(body: bytes, key: str | None) -> tuple[set[str], str]:
    """The codes and the words of an error answer: `{"error": {"message", "type", "code"}}` and its many cousins."""
    try:
        told: Any = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return set(), ""
    if isinstance(told, list):
        told = next(iter(cast("list[Any]", told)), None)
    if isinstance(told, dict):
        told = cast("dict[str, Any]", told).get("error", cast("Any", told))
    if isinstance(told, str):
        return set(), _one_line(told, key)
    if not isinstance(told, dict):
        return set(), ""
    fields = cast("dict[str, Any]", told)
    codes = {str(fields[name]).lower() for name in ("type", "code", "status") if fields.get(name)}
    words = next((fields[name] for name in ("message", "detail") if isinstance(fields.get(name), str)), "")
    return codes, _one_line(words, key)


def _one_line(words: str, key: str | None) -> str:
    """Without keys, and only then cut: half a key is one too."""
    if key:
        words = words.replace(key, "[key]")
    line = " ".join(_KEY_LIKE.sub("[key]", words).split())
    return line if len(line) <= MAX_WORDS else line[: MAX_WORDS - 1] + "…"
