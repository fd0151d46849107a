"""`kedge doctor` says what holds commands, and fails where what is configured cannot be had."""

from __future__ import annotations

from pathlib import Path

import pytest

from kedge.cli import doctor_checks
from kedge.cli.doctor_checks import sandbox

LANDLOCK = ("landlock", "Landlock, ABI 6", "")
NO_LANDLOCK = ("landlock", "", "this kernel has no Landlock")
NO_BUBBLEWRAP = ("bubblewrap", "", "there is no bwrap")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    return tmp_path


def said(
    home: Path, mode: str, found: list[tuple[str, str, str]], monkeypatch: pytest.MonkeyPatch
) -> tuple[bool | None, str]:
    config = home / ".config" / "kedge"
    config.mkdir(parents=True, exist_ok=True)
    (config / "config.toml").write_text(f"sandbox.mode = '{mode}'\n")
    monkeypatch.setattr(doctor_checks, "_found", lambda: found)
    [finding] = sandbox(str(home))
    return finding


def test_what_is_configured_and_works_is_named(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert said(home, "auto", [NO_BUBBLEWRAP, LANDLOCK], monkeypatch) == (True, "sandbox: Landlock, ABI 6")
    assert said(home, "landlock", [NO_BUBBLEWRAP, LANDLOCK], monkeypatch) == (True, "sandbox: Landlock, ABI 6")


def test_what_is_configured_and_cannot_be_had_is_a_failure(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    is_fine, words = said(home, "bubblewrap", [NO_BUBBLEWRAP, LANDLOCK], monkeypatch)
    assert is_fine is False
    assert 'sandbox.mode is "bubblewrap", but there is no bwrap; until' in words
    is_fine, words = said(home, "auto", [NO_BUBBLEWRAP, NO_LANDLOCK], monkeypatch)
    assert is_fine is False
    assert "there is no bwrap; this kernel has no Landlock" in words


def test_one_that_is_off_is_told_with_what_there_could_be(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert said(home, "off", [NO_BUBBLEWRAP, LANDLOCK], monkeypatch)[0] is True
    is_fine, words = said(home, "off", [NO_BUBBLEWRAP, NO_LANDLOCK], monkeypatch)
    assert is_fine is None
    assert "mode plan has no commands" in words


def test_it_is_tried_on_this_machine(home: Path) -> None:
    assert [name for name, _, _ in doctor_checks._found()] == ["bubblewrap", "landlock"]
    assert all(bool(described) != bool(why) for _, described, why in doctor_checks._found())
    assert len(list(sandbox(str(home)))) == 1
