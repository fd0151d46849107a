"""Google's errors: one code and one text for many faults, which only their details tell apart."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kedge.models.errors import ModelError, Refused, Transient
from kedge.models.values import Endpoint
from kedge.models.wires.provider_errors import error_from_event, error_from_response

KEY = "AIzaSyA-planted-0123456789"
ENDPOINT = Endpoint(
    provider="gemini", model="gemini-3.8-flash", base_url="https://models.test", api_key=KEY, wire="gemini"
)
EXHAUSTED = "You exceeded your current quota, please check your plan and billing details. Please retry in 34.07s."
WAIT: dict[str, Any] = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "34.074824224s"}


def reason(word: str) -> dict[str, Any]:
    return {"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": word, "domain": "googleapis.com"}


def used_up(period: str) -> dict[str, Any]:
    quota = f"GenerateRequestsPer{period}PerProjectPerModel-FreeTier"
    return {"@type": "type.googleapis.com/google.rpc.QuotaFailure", "violations": [{"quotaId": quota}]}


def body(code: int, status: str, message: str, *details: dict[str, Any]) -> Any:
    return {"error": {"code": code, "message": message, "status": status, "details": list(details)}}


def both(told: Any, headers: dict[str, str] | None = None) -> list[ModelError]:
    """The same fault, as an answer, as the array that a stream can be, and in the middle of a stream."""
    status = told["error"]["code"]
    answers = [json.dumps(told).encode(), json.dumps([told], indent=2).encode()]
    found = [error_from_response(ENDPOINT, status, headers or {}, answer, 0.0) for answer in answers]
    return [*found, error_from_event(answers[0], ENDPOINT)]


@pytest.mark.parametrize(
    ("told", "kind", "code"),
    [
        (body(400, "INVALID_ARGUMENT", "API key not valid.", reason("API_KEY_INVALID")), Refused, "auth"),
        (body(401, "UNAUTHENTICATED", "Request had invalid authentication credentials."), Refused, "auth"),
        (body(403, "PERMISSION_DENIED", "Your API key was reported as leaked."), Refused, "auth"),
        (body(404, "NOT_FOUND", "models/x is not found for API version v1beta"), Refused, "model_not_found"),
        (body(400, "INVALID_ARGUMENT", "Unknown name."), Refused, "bad_request"),
        (
            body(400, "INVALID_ARGUMENT", "The input token count (2) exceeds the maximum number of tokens allowed (1)"),
            Refused,
            "context_too_long",
        ),
        (
            body(400, "INVALID_ARGUMENT", "Request payload size exceeds the limit: 20971520 bytes."),
            Refused,
            "context_too_long",
        ),
        (body(429, "RESOURCE_EXHAUSTED", EXHAUSTED, used_up("Minute"), WAIT), Transient, "rate_limited"),
        (body(429, "RESOURCE_EXHAUSTED", EXHAUSTED, used_up("Day"), WAIT), Refused, "quota"),
        (body(429, "RESOURCE_EXHAUSTED", EXHAUSTED), Refused, "quota"),
        (body(429, "RESOURCE_EXHAUSTED", "Resource has been exhausted."), Transient, "rate_limited"),
        (body(500, "INTERNAL", "An internal error has occurred."), Transient, "provider_error"),
        (body(503, "UNAVAILABLE", "The model is overloaded."), Transient, "provider_error"),
        (body(504, "DEADLINE_EXCEEDED", "Deadline expired."), Transient, "provider_error"),
    ],
)
def test_each_fault_has_its_own_code(told: Any, kind: type[ModelError], code: str) -> None:
    for found in both(told):
        assert isinstance(found, kind)
        assert found.code == code


def test_the_time_to_wait_is_in_the_details_or_in_a_header_which_comes_first() -> None:
    told = body(429, "RESOURCE_EXHAUSTED", EXHAUSTED, WAIT)
    assert [getattr(found, "retry_after_s", 0) for found in both(told)] == [34.074824224] * 3
    [answer, *_] = both(told, {"retry-after": "3"})
    assert isinstance(answer, Transient)
    assert answer.retry_after_s == 3
    for found in both(body(503, "UNAVAILABLE", "busy", {**WAIT, "retryDelay": "2s"})):
        assert isinstance(found, Transient)
        assert found.retry_after_s == 2
        assert found.code == "provider_error"


@pytest.mark.parametrize("details", [None, 7, "x", [], [None, 1, "x", {}], [{"retryDelay": 7}], [{"retryDelay": "x"}]])
def test_details_of_any_shape_spoil_nothing(details: Any) -> None:
    for found in both({"error": {"code": 429, "status": "RESOURCE_EXHAUSTED", "message": "busy", "details": details}}):
        assert isinstance(found, Transient)
        assert found.retry_after_s is None


def test_a_key_of_the_vendors_shape_is_not_repeated() -> None:
    keyless = Endpoint(provider="gemini", model="m", base_url="https://models.test", wire="gemini")
    told = json.dumps(body(400, "INVALID_ARGUMENT", f"bad {KEY}.")).encode()
    for found in (error_from_response(keyless, 400, {}, told, 0.0), error_from_event(told, keyless)):
        assert "0123456789" not in found.text
    assert "GEMINI_API_KEY" in error_from_response(ENDPOINT, 403, {}, b"", 0.0).text
