"""Checks of `kedge doctor`: sandbox, programs and terminal."""

from __future__ import annotations

import io
import os
import shutil
import sys
from pathlib import Path

import pytest

from kedge.cli import doctor_checks
from kedge.cli.doctor_checks import check_programs, check_sandbox, check_terminal

LANDLOCK = ("landlock", "Landlock, ABI 6", "")
NO_LANDLOCK = ("landlock", "", "this kernel has no Landlock")
NO_BUBBLEWRAP = ("bubblewrap", "", "there is no bwrap")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    return tmp_path


def check(
    home: Path, mode: str, found: list[tuple[str, str, str]], monkeypatch: pytest.MonkeyPatch
) -> tuple[bool | None, str]:
    config = home / ".config" / "kedge"
    config.mkdir(parents=True, exist_ok=True)
    (config / "config.toml").write_text(f"sandbox.mode = '{mode}'\n")
    monkeypatch.setattr(doctor_checks, "_find_sandboxes", lambda: found)
    [finding] = check_sandbox(str(home))
    return finding


def test_what_is_configured_and_works_is_named(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert check(home, "auto", [NO_BUBBLEWRAP, LANDLOCK], monkeypatch) == (True, "sandbox: Landlock, ABI 6")
    assert check(home, "landlock", [NO_BUBBLEWRAP, LANDLOCK], monkeypatch) == (True, "sandbox: Landlock, ABI 6")


def test_what_is_configured_and_cannot_be_had_is_a_failure(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    is_ok, words = check(home, "bubblewrap", [NO_BUBBLEWRAP, LANDLOCK], monkeypatch)
    assert is_ok is False
    assert '"bubblewrap"' in words
    assert "there is no bwrap" in words
    is_ok, words = check(home, "auto", [NO_BUBBLEWRAP, NO_LANDLOCK], monkeypatch)
    assert is_ok is False
    assert "there is no bwrap; this kernel has no Landlock" in words


def test_one_that_is_off_is_told_with_what_there_could_be(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert check(home, "off", [NO_BUBBLEWRAP, LANDLOCK], monkeypatch)[0] is True
    assert check(home, "off", [NO_BUBBLEWRAP, NO_LANDLOCK], monkeypatch)[0] is None


def test_it_is_tried_on_this_machine(home: Path) -> None:
    assert [name for name, _, _ in doctor_checks._find_sandboxes()] == ["bubblewrap", "landlock"]
    assert all(bool(described) != bool(why) for _, described, why in doctor_checks._find_sandboxes())
    assert len(list(check_sandbox(str(home)))) == 1


@pytest.mark.parametrize("name", ["git", "bash", "rg"])
def test_a_program_that_is_missing_is_a_note_with_what_does_not_work(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:

    def which(program: str) -> str | None:
        return None if program == name else f"/usr/bin/{program}"

    monkeypatch.setattr(shutil, "which", which)
    monkeypatch.setattr(doctor_checks, "_find_ripgrep", lambda: which("rg"))
    [(is_ok, text)] = list(check_programs())
    assert is_ok is None
    assert "not found" in text
    assert "Install " in text


def test_programs_that_are_there_are_one_line() -> None:
    assert list(check_programs()) == [(True, "programs: git, bash, ripgrep")]


def test_characters_that_would_be_lost_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding="latin-1"))
    monkeypatch.setattr(os, "isatty", _no)
    [(is_ok, text)] = list(check_terminal())
    assert is_ok is None
    assert "LANG=C.UTF-8" in text


@pytest.mark.parametrize(("name", "told"), [("dumb", 1), ("", 1), ("xterm-256color", 0)])
def test_a_terminal_that_cannot_be_drawn_on_is_told(name: str, told: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding="utf-8"))
    monkeypatch.setenv("TERM", name)
    monkeypatch.setattr(os, "isatty", _yes)
    assert len(list(check_terminal())) == told
    monkeypatch.setattr(os, "isatty", _no)
    assert list(check_terminal()) == [], "of a pipe there is nothing to say"


def _yes(fd: int) -> bool:
    return True


def _no(fd: int) -> bool:
    return False
