"""Faults of providers are told apart, in words that help and that hold no key."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kedge.models.errors import Refused, Transient
from kedge.models.faults import fault_of_answer, fault_of_event
from kedge.models.retry_after import retry_after_s
from kedge.models.values import Endpoint

KEY = "sk-proj-0123456789abcdef"
ENDPOINT = Endpoint(provider="openai", model="m", base_url="https://models.test/v1", api_key=KEY)
NOW = 1_000_000_000.0


def fault(status: int, error: Any = None, **headers: str) -> Refused | Transient:
    body = b"" if error is None else json.dumps({"error": error}).encode()
    found = fault_of_answer(ENDPOINT, status, headers, body, NOW)
    assert isinstance(found, Refused | Transient)
    return found


@pytest.mark.parametrize("status", [408, 409, 429, 500, 502, 503, 504, 529])
def test_what_may_pass_is_transient(status: int) -> None:
    assert isinstance(fault(status), Transient)


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
        (400, {"code": "content_filter"}, "content_filter"),
        (404, {"code": "model_not_found"}, "model_not_found"),
        (404, None, "model_not_found"),
        (400, {"message": "what is this?"}, "bad_request"),
        (422, {"message": "no such field"}, "bad_request"),
        (302, None, "bad_response"),
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


@pytest.mark.parametrize("body", [b"<html>oops</html>", b"\xff\xfe", b"[]", b"null", b'{"error": 7}', b'["x"]', b"{"])
def test_an_unreadable_body_is_still_a_fault(body: bytes) -> None:
    assert isinstance(fault_of_answer(ENDPOINT, 500, {}, body, NOW), Transient)


@pytest.mark.parametrize("status", [400, 401, 403, 429, 500])
@pytest.mark.parametrize("words", [f"bad key {KEY}", f"Bearer {KEY}", f"provided: {KEY[:9]}********cdef."])
def test_no_key_is_repeated(status: int, words: str) -> None:
    texts = [fault(status, {"message": words}).text, fault_of_event(json.dumps({"error": words}).encode(), None).text]
    for text in texts:
        assert "0123456789" not in text
        assert "cdef" not in text


def test_a_key_of_any_shape_is_not_repeated() -> None:
    endpoint = Endpoint(provider="openai", model="m", base_url="https://models.test/v1", api_key="plain-words")
    for padding in range(480, 500):  # the words are cut somewhere, and not through a key
        body = json.dumps({"error": {"message": "x" * padding + " plain-words out of order"}}).encode()
        for fault in (fault_of_answer(endpoint, 500, {}, body, NOW), fault_of_event(body, endpoint.api_key)):
            assert "pl" not in fault.text
            assert "xxx" in fault.text


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({}, None),
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": "0.5"}, 0.5),
        ({"retry-after": "7", "retry-after-ms": "250"}, 0.25),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "-3"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "Sun, 09 Sep 2001 01:47:10 GMT"}, 30.0),
        ({"retry-after": "Sun, 09 Sep 2001 01:46:10 GMT"}, 0.0),
    ],
)
def test_a_wish_to_wait_is_understood(headers: dict[str, str], expected: float | None) -> None:
    assert retry_after_s(headers, NOW) == expected
