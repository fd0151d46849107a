"""What a terminal says of itself, also late: it is heard, and not taken for something that was typed."""

from __future__ import annotations

import os
import pty
import select
from collections.abc import Generator
from types import SimpleNamespace

import pytest

from kedge.tui import terminal
from tests.tui.terminal import DA1

WHITE = b"\x1b]11;rgb:ffff/ffff/ffff\x1b\\"
LIMIT_S = 30.0
Lists = tuple[list[int], list[int], list[int]]


@pytest.fixture
def master(monkeypatch: pytest.MonkeyPatch) -> Generator[int]:
    """The far end of the terminal that standard input and output are."""
    master, slave = pty.openpty()
    with os.fdopen(slave, "rb", buffering=0) as standard:
        monkeypatch.setattr(terminal, "sys", SimpleNamespace(stdin=standard, stdout=standard))
        yield master
    os.close(master)


@pytest.mark.parametrize("late_s", [0.0, 1.0])
def test_an_answer_is_waited_for_and_what_was_typed_is_the_rest(
    master: int, monkeypatch: pytest.MonkeyPatch, late_s: float
) -> None:
    now = 0.0
    answers = [b"hel" + WHITE + b"lo" + DA1]

    def wait(reading: list[int], writing: list[int], failing: list[int], left_s: float) -> Lists:
        """It takes that long, as this clock has it."""
        nonlocal now
        now += late_s
        if left_s < late_s:
            return [], [], []
        if answers:
            os.write(master, answers.pop())
        return select.select(reading, writing, failing, LIMIT_S)

    monkeypatch.setattr(terminal, "time", SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr(terminal, "select", SimpleNamespace(select=wait))
    assert terminal.query_terminal({"TERM": "xterm"}) == terminal.TerminalInfo(is_light=True, typed=b"hello")


@pytest.mark.usefixtures("master")
def test_a_terminal_that_says_nothing_is_known_by_its_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terminal, "QUERY_S", 0.0)
    assert terminal.query_terminal({"TERM": "xterm", "COLORFGBG": "15;0"}) == terminal.TerminalInfo(is_light=False)
