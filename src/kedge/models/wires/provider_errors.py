"""Which fault an error answer tells of: the same words for every server of every wire, and never a key in them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Any, cast

import msgspec

from kedge.models.errors import Code, Forgotten, ModelError, Refused, Transient
from kedge.models.values import Endpoint, env_prefix
from kedge.models.wires.decoding import fields_of

MAX_WORDS = 500  # of a provider's explanation: enough to act on
MIN_SECRET = 6  # a configured header shorter than this holds no secret, and is part of too many words

# What providers call it, first in their codes; many say it only in words.
_CODES: dict[Code, frozenset[str]] = {
    "context_too_long": frozenset(
        {"context_length_exceeded", "string_above_max_length", "request_too_large", "exceed_context_size_error"}
    ),
    "quota": frozenset(
        {
            "insufficient_quota",
            "billing_hard_limit_reached",
            "billing_not_active",
            "billing_error",
            "insufficient_balance",
            "insufficient_credits",
        }
    ),
    "content_filter": frozenset(
        {
            "content_filter",
            "content_policy_violation",
            "image_content_policy_violation",
            "misalignment_policy_violation",
            "bio_policy",
            "responsibleaipolicyviolation",
        }
    ),
    "auth": frozenset(
        {"invalid_api_key", "authentication_error", "invalid_authentication", "permission_error", "api_key_invalid"}
    ),
    "model_not_found": frozenset({"model_not_found", "not_found_error", "deploymentnotfound"}),
    "rate_limited": frozenset({"rate_limit_exceeded", "rate_limit_error", "resource_exhausted", "429"}),
    "provider_error": frozenset(
        {"server_error", "api_error", "overloaded_error", "internal_error", "timeout", "timeout_error", "error"}
    ),
    "bad_request": frozenset(
        {
            "invalid_prompt",
            "invalid_encrypted_content",
            "data_residency_mismatch",
            "invalid_image",
            "invalid_image_format",
            "invalid_base64_image",
            "image_too_large",
            "image_too_small",
            "image_parse_error",
            "image_file_too_large",
            "unsupported_image_media_type",
            "empty_image_file",
        }
    ),
}
# Said also with the code of a rate limit, which waiting would not help against.
_TOO_LARGE = re.compile(r"request too large for|reduce the length of the messages", re.I)
_WORDS: dict[Code, re.Pattern[str]] = {
    "context_too_long": re.compile(
        r"context (length|window|size|limit)|maximum context|too many tokens|(prompt|input) is too long"
        r"|prompt too long|input tokens exceed|input token count.*exceeds|context the overflows"
        r"|request payload size exceeds",
        re.I,
    ),
    "quota": re.compile(
        r"credit balance is too low|exceeded your current quota|(insufficient|out of|not enough) (credit|balance|fund)"
        r"|api usage limits",
        re.I,
    ),
    "content_filter": re.compile(r"content (filter|management policy|policy)|safety system", re.I),
    "model_not_found": re.compile(r"model .{1,200} (not found|does not exist)|no models? (is |are )?loaded", re.I),
}
_HINTS: dict[Code, str] = {
    "context_too_long": "the conversation is too long for this model; start a new session",
    "quota": "the account has no quota left; check its billing",
    "content_filter": "the provider's content filter refused the request",
}
_FORGOTTEN = re.compile(
    r"encrypted content .{0,200}could not be|invalid .?signature.? in .?thinking"
    r"|(invalid|corrupted) thought.signature|thought.signature is not valid|reasoning input items can only be",
    re.I,
)
_KEY_LIKE = re.compile(r"\b(?:(?:sk|pk|rk|key|Bearer)[-_ ]|AIza)[\w*.-]{8,}")


def fault_of_answer(endpoint: Endpoint, status: int, headers: Mapping[str, str], body: bytes, now: float) -> ModelError:
    """The fault of an answer with an error status; `now` is the time of day, for a `Retry-After` that is a date."""
    codes, words = _explanation(body, _secrets(endpoint))
    code = _code_of(codes, words, status)
    if code == "auth" and status == 401:
        words = ""  # providers repeat half of the key here
    said = f"{endpoint.host} answered {status}"
    text = _with_hint(f"{said} ({words})" if words else said, code, endpoint)
    if code in ("rate_limited", "provider_error"):
        asked_s = retry_after_s(headers, now)
        return Transient(code, text, _google_retry_delay_s(body) if asked_s is None else asked_s)
    return _refused(code, text, codes, words)


def fault_of_event(data: bytes, endpoint: Endpoint) -> ModelError:
    """The fault that an event in the middle of a stream tells of. Without a known word the provider is at fault."""
    codes, words = _explanation(data, _secrets(endpoint))
    numbers = [int(code) for code in codes if re.fullmatch(r"[45]\d\d", code)]
    code = _code_of(codes, words, numbers[0] if numbers else 500)
    text = f"the provider broke off: {words}" if words else "the provider broke off without saying why"
    text = _with_hint(text, code, endpoint)
    if code in ("rate_limited", "provider_error"):
        asked_s = _google_retry_delay_s(data)
        return Transient(code, text, wait_in_words_s(words) if asked_s is None else asked_s)
    return _refused(code, text, codes, words)


def _refused(code: Code, text: str, codes: set[str], words: str) -> Refused:
    is_forgotten = "invalid_encrypted_content" in codes or _FORGOTTEN.search(words)
    return Forgotten(code, text) if code == "bad_request" and is_forgotten else Refused(code, text)


def _code_of(codes: set[str], words: str, status: int) -> Code:
    """By what is meant before what is said, and by that before the status."""
    if _TOO_LARGE.search(words):
        return "context_too_long"
    if _WAIT in codes and status == 429:
        return "rate_limited"
    for code, names in _CODES.items():
        if codes & names:
            return code
        # One that only asks to wait may speak of anything.
        is_meant = code == "quota" or status not in (429, 529)
        if is_meant and (pattern := _WORDS.get(code)) and pattern.search(words):
            return code
    return _code_of_status(status)


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


def _with_hint(text: str, code: Code, endpoint: Endpoint) -> str:
    hint = _HINTS.get(code) or _hint_of_place(code, endpoint)
    return f"{text}: {hint}" if hint else text


def _hint_of_place(code: Code, endpoint: Endpoint) -> str | None:
    """What to look at depends on whose model it is."""
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


def _explanation(body: bytes, secrets: Iterable[str]) -> tuple[set[str], str]:
    """The codes and the words of an error answer: `{"error": {"message", "type", "code"}}` and its many cousins."""
    try:
        told: Any = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return set(), ""
    if isinstance(told, list):
        told = next(iter(cast("list[Any]", told)), None)
    if isinstance(told, dict):
        told = cast("dict[str, Any]", told).get("error", cast("Any", told))
    if isinstance(told, str):
        return set(), _one_line(told, secrets)
    if not isinstance(told, dict):
        return set(), ""
    fields = cast("dict[str, Any]", told)
    codes = {str(fields[name]).lower() for name in ("type", "code", "status") if fields.get(name)}
    codes |= _google_codes(fields)
    words = next((fields[name] for name in ("message", "detail") if isinstance(fields.get(name), str)), "")
    return codes, _one_line(words, secrets)


def _secrets(endpoint: Endpoint) -> list[str]:
    """The key, and what is configured to be sent in its place."""
    return [
        *([endpoint.api_key] if endpoint.api_key else []),
        *(value for value in endpoint.headers.values() if len(value) >= MIN_SECRET),
    ]


def _one_line(words: str, secrets: Iterable[str]) -> str:
    """Without keys, and only then cut: half a key is one too."""
    for secret in secrets:
        words = words.replace(secret, "[key]")
    line = " ".join(_KEY_LIKE.sub("[key]", words).split())
    return line if len(line) <= MAX_WORDS else line[: MAX_WORDS - 1] + "…"


_WAIT = "retry_info"  # the code of an error that names a time to wait: whatever its words are, waiting helps

_GOOGLE_PERIOD = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)s")  # "34.074824224s"


def _google_codes(error: dict[str, Any]) -> set[str]:
    """Reasons in small letters. The same words and the same code tell of a minute's quota, for which one waits, and of
    a day's, for which nobody does."""
    details = list(_google_details(error))
    codes = {str(detail["reason"]).lower() for detail in details if detail.get("reason")}
    if any("PerDay" in str(detail.get("violations")) for detail in details):
        return {*codes, "insufficient_quota"}
    return {*codes, _WAIT} if _longest_delay_s(details) is not None else codes


def _google_retry_delay_s(body: bytes) -> float | None:
    """How long the answer asks to wait; None: it does not."""
    try:
        told: Any = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    error = fields_of(cast("list[Any]", told)[0] if isinstance(told, list) and told else told).get("error")
    return _longest_delay_s(list(_google_details(fields_of(error))))


def _longest_delay_s(details: list[dict[str, Any]]) -> float | None:
    found = (_GOOGLE_PERIOD.fullmatch(str(detail.get("retryDelay", ""))) for detail in details)
    return max((float(period[1]) for period in found if period), default=None)


def _google_details(error: dict[str, Any]) -> Iterator[dict[str, Any]]:
    details = error.get("details")
    if isinstance(details, list):
        yield from (cast("dict[str, Any]", each) for each in cast("list[Any]", details) if isinstance(each, dict))


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
