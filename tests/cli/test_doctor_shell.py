"""What `kedge doctor` says of programs that are not there, and of terminals that cannot show all."""

from __future__ import annotations

import io
import os
import shutil
import sys

import pytest

from kedge.cli import doctor_checks
from kedge.cli.doctor_checks import programs, terminal


@pytest.mark.parametrize("name", ["git", "bash", "rg"])
def test_a_program_that_is_missing_is_a_note_with_what_does_not_work(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:

    def which(program: str) -> str | None:
        return None if program == name else f"/usr/bin/{program}"

    monkeypatch.setattr(shutil, "which", which)
    monkeypatch.setattr(doctor_checks, "_ripgrep", lambda: which("rg"))
    [(is_fine, text)] = list(programs())
    assert is_fine is None
    assert "not found" in text
    assert "; install " in text


def test_programs_that_are_there_are_one_line() -> None:
    assert list(programs()) == [(True, "programs: git, bash, ripgrep")]


def test_characters_that_would_be_lost_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding="latin-1"))
    monkeypatch.setattr(os, "isatty", _no)
    [(is_fine, text)] = list(terminal())
    assert is_fine is None
    assert text.endswith("set LANG=C.UTF-8")


@pytest.mark.parametrize(("name", "told"), [("dumb", 1), ("", 1), ("xterm-256color", 0)])
def test_a_terminal_that_cannot_be_drawn_on_is_told(name: str, told: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding="utf-8"))
    monkeypatch.setenv("TERM", name)
    monkeypatch.setattr(os, "isatty", _yes)
    assert len(list(terminal())) == told
    monkeypatch.setattr(os, "isatty", _no)
    assert list(terminal()) == [], "of a pipe there is nothing to say"


def _yes(fd: int) -> bool:
    return True


def _no(fd: int) -> bool:
    return False
