"""What `kedge doctor` says of the model: enough to act on, and nothing that must not be passed on (P16)."""

from __future__ import annotations

from pathlib import Path

import pytest

from kedge.cli.doctor_model import model
from kedge.config.vendors import ANTHROPIC_MODEL, OPENAI_MODEL
from kedge.models.resolve import resolve

VENDORS = ("OPENAI", "ANTHROPIC", "GEMINI")
VARIABLES = (
    "KEDGE_MODEL",
    "GOOGLE_API_KEY",
    *(f"{each}_{kind}" for each in VENDORS for kind in ("API_KEY", "BASE_URL")),
)


@pytest.fixture(autouse=True)
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


def said(directory: Path) -> str:
    return "\n".join(text for _, text in model(str(directory / "data"), str(directory)))


def test_a_password_in_an_address_is_not_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", "http://me:s3cret-word@127.0.0.1:9/v1?key=s3cret-word")
    text = said(tmp_path)
    assert "nothing answers at OPENAI_BASE_URL=" in text
    assert "s3cret-word" not in text


def test_what_is_no_address_is_called_that_and_not_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", "me:s3cret-word@host")
    assert said(tmp_path) == "OPENAI_BASE_URL is no address; it must be http(s)://HOST[:PORT][/PATH]"


def test_a_stored_key_is_one_that_an_address_gets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "credentials.json").write_text('{"providers": {"openai": {"api_key": "k"}}}')
    first = said(tmp_path).splitlines()[0]
    assert first == "model chosen by the server at http://127.0.0.1:9/v1, with the stored key: OPENAI_BASE_URL is set"


def test_nor_one_in_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "kedge").mkdir()
    (tmp_path / "kedge" / "config.toml").write_text(
        "model = 'mine/m'\nproviders.mine.base_url = 'https://me:s3cret-word@models.example/v1'\n"
    )
    text = said(tmp_path)
    assert "model mine/m at https://…@models.example/v1: the configuration names it" in text
    assert "s3cret-word" not in text


def test_a_model_that_is_named_says_who_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
    monkeypatch.setenv("KEDGE_MODEL", "openai/mine")
    assert "model openai/mine at http://127.0.0.1:9/v1, without a key: KEDGE_MODEL names it" in said(tmp_path)
    monkeypatch.setenv("KEDGE_MODEL", "anthropic/claude")
    missing = "model anthropic/claude: KEDGE_MODEL names it, but no key for it is set in this shell"
    assert said(tmp_path) == f"{missing}; to store one: kedge login anthropic"
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "credentials.json").write_text('{"providers": {"anthropic": {"api_key": "k"}}}')
    assert said(tmp_path) == "model anthropic/claude: KEDGE_MODEL names it, and its key is stored"
    monkeypatch.delenv("KEDGE_MODEL")
    (tmp_path / "kedge").mkdir()
    (tmp_path / "kedge" / "config.toml").write_text("model = 'openai/yours'\n")
    assert "model openai/yours at http://127.0.0.1:9/v1, without a key: the configuration names it" in said(tmp_path)


def test_with_a_key_alone_it_is_the_default_model_of_the_vendor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "k")
    assert said(tmp_path) == f"model anthropic/{ANTHROPIC_MODEL} at Anthropic: ANTHROPIC_API_KEY is set"
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    assert said(tmp_path) == f"model openai/{OPENAI_MODEL} at OpenAI: OPENAI_API_KEY is set"


def test_an_address_comes_before_a_key_and_its_server_has_models_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "k")
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
    first = said(tmp_path).splitlines()[0]
    assert first == "model chosen by the server at http://127.0.0.1:9/v1, without a key: OPENAI_BASE_URL is set"


@pytest.mark.parametrize(
    "variables",
    [
        {"OPENAI_API_KEY": "k"},
        {"ANTHROPIC_API_KEY": "k"},
        {"GEMINI_API_KEY": "k"},
        {"GOOGLE_API_KEY": "k"},
        {"GEMINI_API_KEY": "k", "ANTHROPIC_API_KEY": "k"},
        {"ANTHROPIC_API_KEY": "k", "GEMINI_BASE_URL": "http://127.0.0.1:9"},
        {"GOOGLE_API_KEY": "k", "KEDGE_MODEL": "gemini/some"},
        {"OPENAI_API_KEY": "k", "ANTHROPIC_API_KEY": "k"},
        {"OPENAI_API_KEY": "k", "ANTHROPIC_BASE_URL": "http://127.0.0.1:9"},
        {"OPENAI_API_KEY": "k", "KEDGE_MODEL": "openai"},
        {"OPENAI_API_KEY": "k", "KEDGE_MODEL": "openai/some"},
    ],
)
def test_it_names_the_model_that_the_server_chooses(
    variables: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert said(tmp_path).startswith(f"model {resolve(None, variables).name} at ")
