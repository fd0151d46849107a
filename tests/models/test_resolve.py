"""Which model and key a run uses, and what is said when there is none."""

from __future__ import annotations

import pytest

from kedge.models.errors import ConfigError
from kedge.models.resolve import DEFAULT_OPENAI_MODEL, OPENAI_URL, resolve
from kedge.models.values import Endpoint

KEY = {"OPENAI_API_KEY": "sk-1"}
LOCAL = {"OPENAI_BASE_URL": "http://127.0.0.1:1/v1/"}


def endpoint(model: str, base_url: str, api_key: str | None) -> Endpoint:
    return Endpoint(provider="openai", model=model, base_url=base_url, api_key=api_key)


@pytest.mark.parametrize(
    ("model", "env", "expected"),
    [
        (None, KEY, endpoint(DEFAULT_OPENAI_MODEL, OPENAI_URL, "sk-1")),
        ("openai/a", KEY, endpoint("a", OPENAI_URL, "sk-1")),
        (None, {**KEY, "KEDGE_MODEL": "openai/b"}, endpoint("b", OPENAI_URL, "sk-1")),
        ("openai/a", {**KEY, "KEDGE_MODEL": "openai/b"}, endpoint("a", OPENAI_URL, "sk-1")),
        ("openai/maker/model:tag", LOCAL, endpoint("maker/model:tag", "http://127.0.0.1:1/v1", None)),
        (None, LOCAL, endpoint("", "http://127.0.0.1:1/v1", None)),
        (None, {**LOCAL, **KEY}, endpoint("", "http://127.0.0.1:1/v1", "sk-1")),
        (None, {"OPENAI_API_KEY": " sk-1\n", "KEDGE_MODEL": ""}, endpoint(DEFAULT_OPENAI_MODEL, OPENAI_URL, "sk-1")),
    ],
)
def test_a_run_gets_what_is_configured(model: str | None, env: dict[str, str], expected: Endpoint) -> None:
    assert resolve(model, env) == expected


@pytest.mark.parametrize(
    ("model", "env", "code", "hint"),
    [
        (None, {}, "no_model", "OPENAI_API_KEY"),
        (None, {"OPENAI_API_KEY": " ", "OPENAI_BASE_URL": ""}, "no_model", "OPENAI_BASE_URL"),
        ("openai/a", {}, "bad_config", "OPENAI_API_KEY"),
        ("a", KEY, "bad_config", "openai/a"),
        ("openai/", KEY, "bad_config", "PROVIDER/MODEL"),
        ("nobody/a", KEY, "bad_config", "nobody"),
        (None, {**KEY, "KEDGE_MODEL": "maker/a"}, "bad_config", "openai/maker/a"),
        (None, {"OPENAI_BASE_URL": "localhost:1234"}, "bad_config", "OPENAI_BASE_URL"),
        (None, {"OPENAI_BASE_URL": "ftp://host/v1"}, "bad_config", "OPENAI_BASE_URL"),
        (None, {"OPENAI_BASE_URL": "http://host:port/v1"}, "bad_config", "OPENAI_BASE_URL"),
        (None, {"OPENAI_BASE_URL": "http://[::1/v1"}, "bad_config", "OPENAI_BASE_URL"),
        (None, {"OPENAI_BASE_URL": "http://me:secret@host/v1"}, "bad_config", "OPENAI_BASE_URL"),
        (None, {"OPENAI_BASE_URL": "http://:secret@host/v1"}, "bad_config", "OPENAI_BASE_URL"),
        (None, {"OPENAI_BASE_URL": "http://host/v1?key=secret"}, "bad_config", "OPENAI_BASE_URL"),
        (None, {"OPENAI_API_KEY": "secret\nwith a line"}, "bad_config", "OPENAI_API_KEY"),
        (None, {"OPENAI_API_KEY": "secret\N{EN DASH}dash"}, "bad_config", "OPENAI_API_KEY"),
    ],
)
def test_what_is_missing_is_said_in_one_line(model: str | None, env: dict[str, str], code: str, hint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve(model, env)
    assert caught.value.code == code
    assert hint in caught.value.text
    assert "secret" not in caught.value.text
    assert "\n" not in caught.value.text
