"""What `kedge doctor` says of the model: enough to act on, and nothing that must not be passed on (P16)."""

from __future__ import annotations

from pathlib import Path

import pytest

from kedge.cli.doctor_model import model


@pytest.fixture(autouse=True)
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    for name in ("KEDGE_MODEL", "OPENAI_API_KEY", "OPENAI_BASE_URL", "ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL"):
        monkeypatch.delenv(name, raising=False)


def said(directory: Path) -> str:
    return "\n".join(text for _, text in model(str(directory / "data"), str(directory)))


@pytest.mark.parametrize("address", ["http://me:s3cret-word@127.0.0.1:9/v1?key=s3cret-word", "me:s3cret-word@host"])
def test_a_password_in_an_address_is_not_shown(address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", address)
    text = said(tmp_path)
    assert "nothing answers at OPENAI_BASE_URL=" in text
    assert "s3cret-word" not in text


def test_nor_one_in_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "kedge").mkdir()
    (tmp_path / "kedge" / "config.toml").write_text(
        "model = 'mine/m'\nproviders.mine.base_url = 'https://me:s3cret-word@models.example/v1'\n"
    )
    text = said(tmp_path)
    assert "model mine/m at https://…@models.example/v1: the configuration names it" in text
    assert "s3cret-word" not in text
