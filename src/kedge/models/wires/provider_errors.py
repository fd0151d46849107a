"""Turn error responses of all providers into `ModelError`s with our codes, and find how long to wait.

API keys are removed from the texts.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, cast

import msgspec

from kedge.models.errors import Code, ModelError, ReasoningRejected, Refused, Transient
from kedge.models.values import Endpoint, env_prefix
from kedge.models.wires.decoding import as_object
from kedge.protocol.text_safety import shorten

MAX_CHARS = 500  # of a provider's message
MIN_SECRET = 8  # a shorter value is no secret, and would match ordinary words

# Error codes of the providers. Many errors can be told only by their message.
_CODE_NAMES: dict[Code, str] = {
    "context_too_long": "context_length_exceeded string_above_max_length request_too_large exceed_context_size_error",
    "quota": (
        "insufficient_quota billing_hard_limit_reached billing_not_active billing_error insufficient_balance"
        " insufficient_credits"
    ),
    "content_filter": (
        "content_filter content_policy_violation image_content_policy_violation misalignment_policy_violation"
        " bio_policy responsibleaipolicyviolation"
    ),
    "auth": "invalid_api_key authentication_error invalid_authentication permission_error api_key_invalid",
    "model_not_found": "model_not_found not_found_error deploymentnotfound",
    "rate_limited": "rate_limit_exceeded rate_limit_error resource_exhausted usage_limit_reached 429",
    "provider_error": "server_error api_error overloaded_error internal_error timeout timeout_error error",
    "bad_request": (
        "invalid_prompt invalid_encrypted_content data_residency_mismatch invalid_image invalid_image_format"
        " invalid_base64_image image_too_large image_too_small image_parse_error image_file_too_large"
        " unsupported_image_media_type empty_image_file"
    ),
}
_CODES: dict[Code, frozenset[str]] = {code: frozenset(names.split()) for code, names in _CODE_NAMES.items()}
# Some providers send this with the code of a rate limit, but waiting does not help.
_TOO_LARGE = r"(?i)request too large for|reduce the length of the messages"
_MESSAGES: dict[Code, str] = {
    "context_too_long": (
        r"(?i)context (length|window|size|limit)|maximum context|too many tokens|(prompt|input) is too long"
        r"|prompt too long|input tokens exceed|input token count.*exceeds|context the overflows"
        r"|request payload size exceeds"
    ),
    "quota": (
        r"(?i)credit balance is too low|exceeded your current quota|api usage limits"
        r"|(insufficient|out of|not enough) (credit|balance|fund)"
    ),
    "content_filter": r"(?i)content (filter|management policy|policy)|safety system",
    "model_not_found": r"(?i)model .{1,200} (not found|does not exist)|no models? (is |are )?loaded",
}
_HINTS: dict[Code, str] = {
    "context_too_long": "the conversation is too long for this model",
    "quota": "the account has no quota left; check its billing",
    "content_filter": "the provider's content filter refused the request",
}
_USAGE_LIMIT = r"(?i)\busage.limit|\bper.day\b|\bdaily\b"  # in codes and messages
_REASONING_REJECTED = (
    r"(?i)encrypted content .{0,200}could not be|invalid .?signature.? in .?thinking"
    r"|(invalid|corrupted) thought.signature|thought.signature is not valid|reasoning input items can only be"
)
_KEY_LIKE = r"\b(?:(?:sk|pk|rk|key|Bearer)[-_ ]|AIza)[\w*.-]{8,}"


def error_from_response(
    endpoint: Endpoint, status: int, headers: Mapping[str, str], body: bytes, now: float
) -> ModelError:
    """Return the error for a response with an error status; `now` is the time of day, for a `Retry-After` date."""
    codes, message = _parse_error(body, _secrets(endpoint))
    code = _classify(codes, message, status)
    if code == "auth" and status == 401:
        message = ""  # providers quote half of the key here
    text = f"{endpoint.host} answered {status}" + (f" ({message})" if message else "")
    text = _add_hint(text, code, endpoint)
    if code in ("rate_limited", "provider_error"):
        delay_s = parse_retry_after(headers, now)
        delay_s = _find_delay_s(body, now) if delay_s is None else delay_s
        return Transient(code, text, delay_s, is_usage_limit=_is_usage_limit(codes, message))
    return _make_refusal(code, text, codes, message)


def error_from_event(data: bytes, endpoint: Endpoint) -> ModelError:
    """Return the error that an event in a stream reports. Unknown ones are `provider_error`."""
    codes, message = _parse_error(data, _secrets(endpoint))
    statuses = [int(code) for code in codes if re.fullmatch(r"[45]\d\d", code)]
    code = _classify(codes, message, statuses[0] if statuses else 500)
    text = "The provider stopped the answer" + (f": {message}" if message else " without a reason")
    text = _add_hint(text, code, endpoint)
    if code in ("rate_limited", "provider_error"):
        delay_s = _find_delay_s(data, time.time())
        delay_s = parse_delay_in_message(message) if delay_s is None else delay_s
        return Transient(code, text, delay_s, is_usage_limit=_is_usage_limit(codes, message))
    return _make_refusal(code, text, codes, message)


def _make_refusal(code: Code, text: str, codes: set[str], message: str) -> Refused:
    is_reasoning = "invalid_encrypted_content" in codes or re.search(_REASONING_REJECTED, message)
    return ReasoningRejected(code, text) if code == "bad_request" and is_reasoning else Refused(code, text)


def _classify(codes: set[str], message: str, status: int) -> Code:
    """Match known error codes and message patterns; fall back to the HTTP status."""
    if re.search(_TOO_LARGE, message):
        return "context_too_long"
    if _WAIT in codes and status == 429:
        return "rate_limited"
    for code, names in _CODES.items():
        if codes & names:
            return code
        # The message of a rate limit may mention anything.
        is_reliable = code == "quota" or status not in (429, 529)
        if is_reliable and (pattern := _MESSAGES.get(code)) and re.search(pattern, message):
            return code
    return _classify_status(status)


def _classify_status(status: int) -> Code:
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


def _add_hint(text: str, code: Code, endpoint: Endpoint) -> str:
    hint = _HINTS.get(code) or _hint_for_endpoint(code, endpoint)
    return f"{text}: {hint}" if hint else text


def _hint_for_endpoint(code: Code, endpoint: Endpoint) -> str | None:
    """Return a hint that depends on the provider."""
    prefix = env_prefix(endpoint.provider)
    match code:
        case "auth" if endpoint.api_key is None:
            variable = endpoint.key_variable or f"{prefix}_API_KEY"
            return f"it needs an API key; set {variable}, or run: kedge login {endpoint.provider}"
        case "auth":
            variable = endpoint.key_variable or f"{prefix}_API_KEY"
            return f"the API key was rejected; check {variable}, or run: kedge login {endpoint.provider}"
        case "model_not_found" if endpoint.provider == "ollama":
            return f"get the model with: ollama pull {endpoint.model}"
        case "model_not_found":
            return f"check the model's name and {endpoint.url_variable or f'{prefix}_BASE_URL'}"
        case _:
            return None


def _parse_error(body: bytes, secrets: Iterable[str]) -> tuple[set[str], str]:
    """Return codes and message of an error body: `{"error": {"message", "type", "code"}}` and its many variants."""
    try:
        error: Any = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return set(), ""
    if isinstance(error, list):
        error = next(iter(cast("list[Any]", error)), None)
    if isinstance(error, dict):
        error = cast("dict[str, Any]", error).get("error", cast("Any", error))
    if isinstance(error, str):
        return set(), _one_line(error, secrets)
    if not isinstance(error, dict):
        return set(), ""
    fields = cast("dict[str, Any]", error)
    codes = {str(fields[name]).lower() for name in ("type", "code", "status") if fields.get(name)}
    codes |= _google_codes(fields)
    message = next((fields[name] for name in ("message", "detail") if isinstance(fields.get(name), str)), "")
    return codes, _one_line(message, secrets)


def _secrets(endpoint: Endpoint) -> list[str]:
    """Return the API key and the configured header values."""
    return [value for value in (endpoint.api_key or "", *endpoint.headers.values()) if len(value) >= MIN_SECRET]


def _one_line(message: str, secrets: Iterable[str]) -> str:
    """Remove secrets before cutting: half a key is secret, too."""
    for secret in secrets:
        message = message.replace(secret, "[key]")
    return shorten(re.sub(_KEY_LIKE, "[key]", message), MAX_CHARS)


# Google explains errors in `error.details`: reasons, violated quotas, and a delay.
_WAIT = "retry_info"  # our code for an error with a delay: waiting helps, whatever the message is
_GOOGLE_PERIOD = r"(\d{1,9}(?:\.\d{1,9})?)s"  # "34.074824224s"


def _google_codes(error: dict[str, Any]) -> set[str]:
    """Return the reasons in lower case. Message and code are the same for a quota per minute, where waiting helps, and
    per day, where it does not; only the details differ."""
    details = list(_google_details(error))
    codes = {str(detail["reason"]).lower() for detail in details if detail.get("reason")}
    if any("PerDay" in str(detail.get("violations")) for detail in details):
        return {*codes, "insufficient_quota"}
    return {*codes, _WAIT} if _longest_delay_s(details) is not None else codes


def _find_delay_s(body: bytes, now: float) -> float | None:
    """Return the delay that the error itself asks for, if any."""
    try:
        decoded: Any = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    first = as_object(cast("list[Any]", decoded)[0] if isinstance(decoded, list) and decoded else decoded)
    error = as_object(first.get("error"))
    if (delay_s := _longest_delay_s(list(_google_details(error)))) is not None:
        return delay_s
    for field in ("resets_in_seconds", "resets_at"):  # of OpenAI's subscriptions
        if isinstance(value := error.get(field), (int, float)):
            return _parse_reset(str(value), now)
    headers = as_object(as_object(error.get("metadata")).get("headers"))  # of OpenRouter
    return parse_retry_after({name.lower(): str(value) for name, value in headers.items()}, now)


def _is_usage_limit(codes: set[str], message: str) -> bool:
    return any(re.search(_USAGE_LIMIT, text) for text in (*codes, message))


def _longest_delay_s(details: list[dict[str, Any]]) -> float | None:
    matches = (re.fullmatch(_GOOGLE_PERIOD, str(detail.get("retryDelay", ""))) for detail in details)
    return max((float(period[1]) for period in matches if period), default=None)


def _google_details(error: dict[str, Any]) -> Iterator[dict[str, Any]]:
    details = error.get("details")
    if isinstance(details, list):
        yield from (cast("dict[str, Any]", each) for each in cast("list[Any]", details) if isinstance(each, dict))


# Kinds of rate limits, and the two families of headers that report them.
_LIMITS = ("", "-requests", "-tokens", "-input-tokens", "-output-tokens")
_HEADERS = ("x-ratelimit-{what}{limit}", "anthropic-ratelimit{limit}-{what}")
_PERIOD = r"(?:(\d+)h)?(?:(\d+)m(?!s))?(?:([\d.]+)s)?(?:([\d.]+)ms)?"  # "6m0s", "20ms"
_DELAY_IN_MESSAGE = r"(?i)\btry again in ((?:[\d.]+(?:ms|[hms]))+)"
_EPOCH_S = 1_000_000_000.0  # a larger number is a time of day, not a period


def parse_retry_after(headers: Mapping[str, str], now: float) -> float | None:
    """Return the delay in seconds that the headers ask for, if any. `headers` has lower-case names."""
    for name, unit_s in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        value = _parse_number(headers.get(name, ""))
        if value is not None:
            return value * unit_s
    if "retry-after" in headers:
        return _parse_date(headers["retry-after"], now)
    delays = [
        _parse_reset(headers.get(header.format(what="reset", limit=limit), ""), now)
        for header in _HEADERS
        for limit in _LIMITS
        if _parse_number(headers.get(header.format(what="remaining", limit=limit), "")) == 0
    ]
    return max((delay_s for delay_s in delays if delay_s is not None), default=None)


def parse_delay_in_message(message: str) -> float | None:
    """Return the delay in a message like "Please try again in 1.5s": events have no headers."""
    match = re.search(_DELAY_IN_MESSAGE, message)
    return _parse_period(match[1]) if match else None


def _parse_reset(value: str, now: float) -> float | None:
    """Parse the time of a reset: a period, seconds, a timestamp in seconds or milliseconds, or a date."""
    number = _parse_number(value)
    if number is not None:
        if number < _EPOCH_S:
            return number
        return max(0.0, (number if number < _EPOCH_S * 100 else number / 1000) - now)
    if (period_s := _parse_period(value.strip())) is not None:
        return period_s
    try:
        return max(0.0, datetime.fromisoformat(value.strip()).timestamp() - now)
    except (ValueError, OverflowError):
        return _parse_date(value, now)


def _parse_period(value: str) -> float | None:
    match = re.fullmatch(_PERIOD, value)
    if match is None or not any(match.groups()):
        return None
    parts = [_parse_number(part or "0") or 0.0 for part in match.groups()]
    return parts[0] * 3600 + parts[1] * 60 + parts[2] + parts[3] / 1000


def _parse_date(value: str, now: float) -> float | None:
    try:
        from email.utils import parsedate_to_datetime  # late: providers send seconds

        return max(0.0, parsedate_to_datetime(value).timestamp() - now)
    except (ValueError, OverflowError):
        return None


def _parse_number(value: str) -> float | None:
    try:
        number = float(value)
    except ValueError:
        return None
    return number if number >= 0 and math.isfinite(number) else None
