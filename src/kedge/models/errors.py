"""Errors of model calls.

ModelError                  `text` is one line for people and never contains an API key; `code` is for programs
├── ConfigError             no_model, bad_config: nothing could be sent
├── Refused                 auth, model_not_found, context_too_long, quota, content_filter, bad_request, bad_response:
│   │                       the same request would fail again
│   └── ReasoningRejected   bad_request: the provider rejects reasoning it sent earlier; without it the request works
└── Transient               rate_limited, provider_error, unreachable, dropped, stalled: another attempt may succeed
"""

from __future__ import annotations

from typing import Literal

Code = Literal[
    "no_model", "bad_config", "auth", "model_not_found", "context_too_long", "quota", "content_filter", "bad_request",
    "bad_response", "rate_limited", "provider_error", "unreachable", "dropped", "stalled",
]  # fmt: skip


class ModelError(Exception):
    def __init__(self, code: Code, text: str) -> None:
        super().__init__(text)
        self.code: Code = code
        self.text = text


class ConfigError(ModelError):
    pass


class Refused(ModelError):
    pass


class ReasoningRejected(Refused):
    pass


class Transient(ModelError):
    """`retry_after_s` is the delay that the provider asks for, if it does. A usage limit is one of hours or days, which
    belongs to a subscription or a plan."""

    def __init__(
        self, code: Code, text: str, retry_after_s: float | None = None, *, is_usage_limit: bool = False
    ) -> None:
        super().__init__(code, text)
        self.retry_after_s = retry_after_s
        self.is_usage_limit = is_usage_limit
