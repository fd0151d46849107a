"""What goes wrong on the way to a model's answer.

ModelError          `text` is one line for people, and never holds a key; `code` is for programs
├── ConfigError     no_model, bad_config: nothing could be sent
├── Refused         auth, model_not_found, context_too_long, quota, content_filter, bad_request, bad_response:
│   │               the same request would fail again
│   └── Forgotten   bad_request: the provider cannot read the thoughts that it gave; without them it would not fail
└── Transient       rate_limited, provider_error, unreachable, dropped, stalled: another attempt may help
"""

from __future__ import annotations

from typing import Literal

Code = Literal[
    "no_model",
    "bad_config",
    "auth",
    "model_not_found",
    "context_too_long",
    "quota",
    "content_filter",
    "bad_request",
    "bad_response",
    "rate_limited",
    "provider_error",
    "unreachable",
    "dropped",
    "stalled",
]


class ModelError(Exception):
    def __init__(self, code: Code, text: str) -> None:
        super().__init__(text)
        self.code: Code = code
        self.text = text


class ConfigError(ModelError):
    pass


class Refused(ModelError):
    pass


class Forgotten(Refused):
    pass


class Transient(ModelError):
    """`retry_after_s` is how long the provider asks to wait, if it does."""

    def __init__(self, code: Code, text: str, retry_after_s: float | None = None) -> None:
        super().__init__(code, text)
        self.retry_after_s = retry_after_s
