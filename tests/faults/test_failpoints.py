"""Failpoints themselves: named, counted, and nothing at all when off."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Generator

import pytest

from kedge import failpoints
from tests.faults.processes import LIMIT_S, environment

PASSES_FIVE_TIMES = "from kedge import failpoints\nfor n in range(5): failpoints.hit('a', 'b'); print(n, flush=True)"


@pytest.fixture(autouse=True)
def disarmed() -> Generator[None]:
    yield
    failpoints.disarm()


def run_with(setting: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", PASSES_FIVE_TIMES],
        env=environment({"KEDGE_FAILPOINT": setting}),
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT_S,
    )


@pytest.mark.parametrize(("setting", "passed"), [("a.b=kill", 0), ("a.b=kill@1", 0), ("a.b=kill@4", 3)])
def test_the_environment_kills_at_the_hit_that_it_names(setting: str, passed: int) -> None:
    result = run_with(setting)
    assert result.returncode == -signal.SIGKILL
    assert len(result.stdout.split()) == passed


@pytest.mark.parametrize("setting", ["a.b=kill@6", "a=kill", "", "b.a=kill"])
def test_a_place_that_is_not_passed_kills_nobody(setting: str) -> None:
    result = run_with(setting)
    assert (result.returncode, len(result.stdout.split())) == (0, 5)


@pytest.mark.parametrize("setting", ["a.b", "a.b=", "a.b=stop", "a.b=kill@0", "a.b=kill@-1", "=kill"])
def test_a_setting_that_makes_no_sense_is_refused_and_not_ignored(setting: str) -> None:
    result = run_with(setting)
    assert result.returncode == 1
    assert "is not NAME=kill or NAME=kill@COUNT" in result.stderr


def test_watchers_hear_of_every_place_and_armed_ones_act() -> None:
    heard: list[str] = []
    failpoints.watch(heard.append)
    failpoints.arm("one.two", lambda: heard.append("acted"))
    failpoints.hit("one", "two")
    failpoints.hit("three")
    assert heard == ["one.two", "acted", "three"]
    failpoints.disarm()
    failpoints.hit("one.two")
    assert heard == ["one.two", "acted", "three"]
