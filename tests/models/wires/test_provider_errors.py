"""Faults of providers are told apart, in words that help and that hold no key."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from kedge.models.errors import ReasoningRejected, Refused, Transient
from kedge.models.values import Endpoint
from kedge.models.wires.provider_errors import error_from_event, error_from_response

KEY = "sk-proj-0123456789abcdef"
ENDPOINT = Endpoint(provider="openai", model="m", base_url="https://models.test/v1", api_key=KEY)
NOW = 1_000_000_000.0


def fault(status: int, error: Any = None, **headers: str) -> Refused | Transient:
    body = b"" if error is None else json.dumps({"error": error}).encode()
    found = error_from_response(ENDPOINT, status, headers, body, NOW)
    assert isinstance(found, Refused | Transient)
    return found


@pytest.mark.parametrize("status", [408, 409, 429, 500, 502, 503, 504, 529])
def test_what_may_pass_is_transient(status: int) -> None:
    assert isinstance(fault(status), Transient)


@pytest.mark.parametrize(
    ("status", "error", "code"),
    [
        (429, {"type": "rate_limit_error", "message": "This would exceed your rate limit"}, "rate_limited"),
        (429, {"message": "Too many tokens, please wait before trying again."}, "rate_limited"),
        (529, {"type": "overloaded_error", "message": "Overloaded"}, "provider_error"),
        (500, {"type": "api_error", "message": "Internal server error"}, "provider_error"),
        (504, {"type": "timeout_error", "message": "Request timed out"}, "provider_error"),
        (400, {"type": "overloaded_error"}, "provider_error"),
    ],
)
def test_what_may_pass_is_told_apart(status: int, error: Any, code: str) -> None:
    found = fault(status, error)
    assert isinstance(found, Transient)
    assert found.code == code


@pytest.mark.parametrize(
    ("provider", "key", "status", "hint"),
    [
        ("openai", KEY, 401, "OPENAI_API_KEY, or run: kedge login openai"),
        ("anthropic", KEY, 401, "check ANTHROPIC_API_KEY, or run: kedge login anthropic"),
        ("my-proxy", KEY, 403, "check MY_PROXY_API_KEY, or run: kedge login my-proxy"),
        ("anthropic", None, 401, "ANTHROPIC_API_KEY, or run: kedge login anthropic"),
        ("anthropic", KEY, 404, "check the model's name and ANTHROPIC_BASE_URL"),
        ("ollama", None, 404, "ollama pull m"),
        ("anthropic", KEY, 402, "check its billing"),
        ("anthropic", KEY, 413, "the conversation is too long for this model"),
    ],
)
def test_the_hint_names_what_belongs_to_the_provider(provider: str, key: str | None, status: int, hint: str) -> None:
    endpoint = Endpoint(provider=provider, model="m", base_url="https://models.test/v1", api_key=key)
    assert error_from_response(endpoint, status, {}, b"", NOW).text.endswith(hint)


def test_a_limit_tells_how_long_to_wait() -> None:
    found = fault(429, None, **{"retry-after": "7"})
    assert isinstance(found, Transient)
    assert found.retry_after_s == 7.0


@pytest.mark.parametrize(
    ("error", "code"),
    [
        ({"type": "overloaded_error", "message": "Overloaded"}, "provider_error"),
        ({"type": "rate_limit_error", "message": "slower"}, "rate_limited"),
        ({"code": 429, "message": "slower"}, "rate_limited"),
        ({"code": 502, "message": "upstream"}, "provider_error"),
        ({"code": 401, "message": "who?"}, "auth"),
        ({"type": "invalid_request_error", "message": "prompt is too long"}, "context_too_long"),
        ({"type": "billing_error"}, "quota"),
        ({"message": "?"}, "provider_error"),
    ],
)
def test_a_fault_in_the_middle_of_a_stream_is_told_apart_too(error: Any, code: str) -> None:
    data = json.dumps({"type": "error", "error": error}).encode()
    assert error_from_event(data, ENDPOINT).code == code


@pytest.mark.parametrize(
    ("status", "error", "code"),
    [
        (401, None, "auth"),
        (403, None, "auth"),
        (400, {"code": "invalid_api_key"}, "auth"),
        (402, None, "quota"),
        (429, {"code": "insufficient_quota", "message": "You exceeded your current quota"}, "quota"),
        (400, {"code": "context_length_exceeded"}, "context_too_long"),
        (400, {"message": "This model's maximum context length is 8192 tokens"}, "context_too_long"),
        (400, "the prompt is too long", "context_too_long"),
        (413, None, "context_too_long"),
        (400, {"message": "Input tokens exceed the configured limit of 272000 tokens."}, "context_too_long"),
        (400, {"code": "content_filter"}, "content_filter"),
        (404, {"code": "model_not_found"}, "model_not_found"),
        (404, None, "model_not_found"),
        (400, {"message": "what is this?"}, "bad_request"),
        (422, {"message": "no such field"}, "bad_request"),
        (302, None, "bad_response"),
        # Anthropic
        (401, {"type": "authentication_error", "message": "invalid x-api-key"}, "auth"),
        (403, {"type": "permission_error", "message": "not for you"}, "auth"),
        (402, {"type": "billing_error", "message": "pay"}, "quota"),
        (400, {"type": "invalid_request_error", "message": "Your credit balance is too low to access"}, "quota"),
        (400, {"type": "invalid_request_error", "message": "You have reached your API usage limits."}, "quota"),
        (404, {"type": "not_found_error", "message": "model: claude-nonsense"}, "model_not_found"),
        (413, {"type": "request_too_large", "message": "Request exceeds the maximum size"}, "context_too_long"),
        (400, {"type": "invalid_request_error", "message": "prompt is too long: 9 tokens > 8"}, "context_too_long"),
        (
            400,
            {"type": "invalid_request_error", "message": "input length and `max_tokens` exceed context limit: 1 + 2"},
            "context_too_long",
        ),
        (400, {"type": "invalid_request_error", "message": "Output blocked by content filtering"}, "content_filter"),
        # servers of one's own, and gateways
        (400, {"type": "exceed_context_size_error", "message": "it exceeds", "n_ctx": 8}, "context_too_long"),
        (400, {"message": "prompt too long; exceeded max context length by 4 tokens"}, "context_too_long"),
        (400, "Trying to keep the first 9 tokens when context the overflows", "context_too_long"),
        (429, {"code": "rate_limit_exceeded", "message": "Request too large for gpt-5 on tokens"}, "context_too_long"),
        (404, "model 'qwen' not found, try pulling it first", "model_not_found"),
        (400, {"message": "The model `x` does not exist or you do not have access"}, "model_not_found"),
        (402, {"message": "Insufficient credits"}, "quota"),
        (400, {"message": "filtered due to the prompt triggering our content management policy"}, "content_filter"),
    ],
)
def test_what_will_not_pass_is_refused_with_its_own_code(status: int, error: Any, code: str) -> None:
    found = fault(status, error)
    assert isinstance(found, Refused)
    assert found.code == code
    assert str(status) in found.text
    assert "models.test" in found.text


def test_the_providers_words_are_kept_in_one_line() -> None:
    assert "(too many\\nrequests)" not in fault(429, {"message": "too many\nrequests"}).text
    assert "(too many requests)" in fault(429, {"message": "too many\nrequests"}).text
    assert len(fault(500, {"message": "x" * 100_000}).text) < 1000


@pytest.mark.parametrize(
    "words",
    [
        "The encrypted content for item rs_1 could not be verified.",
        "messages.1.content.0: Invalid `signature` in `thinking` block",
        "Corrupted thought signature.",
        "Unable to submit request because Thought signature is not valid..",
        "Invalid thought signature.",
        "Reasoning input items can only be provided to a reasoning or computer use model.",
    ],
)
def test_thoughts_that_are_not_taken_back_are_told_apart(words: str) -> None:
    assert isinstance(fault(400, {"message": words, "status": "INVALID_ARGUMENT"}), ReasoningRejected)


BODIES = [b"<html>oops</html>", b"\xff\xfe", b"[]", b"null", b'{"error": 7}', b'["x"]', b"{", b"[" * 100_000]


@pytest.mark.parametrize("body", BODIES)
def test_an_unreadable_body_is_still_a_fault(body: bytes) -> None:
    assert isinstance(error_from_response(ENDPOINT, 500, {}, body, NOW), Transient)


@pytest.mark.parametrize("status", [400, 401, 403, 429, 500])
@pytest.mark.parametrize("words", [f"bad key {KEY}", f"Bearer {KEY}", f"provided: {KEY[:9]}********cdef."])
def test_no_key_is_repeated(status: int, words: str) -> None:
    keyless = msgspec.structs.replace(ENDPOINT, api_key=None)  # it is hidden by its shape, too
    event = json.dumps({"error": words}).encode()
    for text in (fault(status, {"message": words}).text, error_from_event(event, keyless).text):
        assert "0123456789" not in text
        assert "cdef" not in text


def test_a_key_of_any_shape_is_not_repeated() -> None:
    endpoint = Endpoint(provider="openai", model="m", base_url="https://models.test/v1", api_key="plain-words")
    for padding in range(480, 500):  # the words are cut somewhere, and not through a key
        body = json.dumps({"error": {"message": "x" * padding + " plain-words out of order"}}).encode()
        for fault in (error_from_response(endpoint, 500, {}, body, NOW), error_from_event(body, endpoint)):
            assert "pl" not in fault.text
            assert "xxx" in fault.text


def test_what_is_configured_to_be_sent_in_a_header_is_not_repeated() -> None:
    headers = {"X-Gateway-Token": "plain.words.of.a.gateway", "X-Team": "a"}
    endpoint = Endpoint(provider="mine", model="m", base_url="https://models.test/v1", headers=headers)
    body = json.dumps({"error": {"message": "bad plain.words.of.a.gateway for a team"}}).encode()
    for found in (error_from_response(endpoint, 400, {}, body, NOW), error_from_event(body, endpoint)):
        assert "plain.words" not in found.text
        assert "for a team" in found.text


@pytest.mark.parametrize(
    ("error", "delay_s", "is_usage_limit"),
    [
        ({"type": "usage_limit_reached", "message": "The limit was reached", "resets_in_seconds": 7200}, 7200, True),
        ({"type": "usage_limit_reached", "resets_at": NOW + 600}, 600, True),
        ({"type": "usage_limit_reached", "resets_at": None}, None, True),
        (
            {
                "message": "Rate limit exceeded: free-models-per-day",
                "code": 429,
                "metadata": {"headers": {"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": str(int(NOW + 90) * 1000)}},
            },
            90,
            True,
        ),
        ({"code": "rate_limit_exceeded", "message": "Too many requests a minute"}, None, False),
        ({"code": 429, "metadata": {"headers": "none"}}, None, False),
    ],
)
def test_the_end_of_a_limit_is_read_from_the_answer(
    error: dict[str, Any], delay_s: float | None, is_usage_limit: bool
) -> None:
    found = fault(429, error)
    assert isinstance(found, Transient)
    assert (found.code, found.retry_after_s, found.is_usage_limit) == ("rate_limited", delay_s, is_usage_limit)


def test_a_header_counts_more_than_the_body() -> None:
    found = fault(429, {"type": "usage_limit_reached", "resets_in_seconds": 7200}, **{"retry-after": "30"})
    assert isinstance(found, Transient)
    assert found.retry_after_s == 30
