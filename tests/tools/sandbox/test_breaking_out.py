"""Attempts to escape, all really made: each works without a sandbox, fails in one, and changes nothing."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from kedge.config.schema import SandboxConfig, SandboxMode
from kedge.tools.sandbox import kernel
from tests.tools.sandbox.attempts import ALL, ANYBODY, ATTEMPTS, ROOT, UNAPPROVED, UNAPPROVED_ROOT
from tests.tools.sandbox.cells import BACKENDS, Cell, needs_bubblewrap, needs_landlock, people

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="there is a sandbox only on Linux")

Results = dict[str, str]

# Landlock cannot deny these (docs/sandbox.md); in mode plan the seccomp filter does.
ATTRIBUTES = {
    "change_the_mode",
    "change_the_mode_of_what_is_open",
    "change_the_owner",
    "change_the_times",
    "set_an_attribute",
    "set_a_flag",
}
NAMES = sorted(ATTEMPTS)
HAS_SCOPES = sys.platform == "linux" and kernel.landlock_abi() >= 6
NOT_BY_LANDLOCK = ATTRIBUTES if HAS_SCOPES else ATTRIBUTES | {"signal_a_process"}


def attempt_all(root: Path, mode: SandboxMode, *, is_unapproved: bool = False) -> tuple[Results, bool]:
    """What became of all attempts, and whether the world outside is as it was."""
    cell = Cell(root, ALL)
    if is_unapproved:
        names = sorted(ALL)
        cell.prepare_read_only(mode, cell.out)
    elif mode == "off":
        names = sorted(ALL)
    else:
        names = [name for name in NAMES if mode != "landlock" or name not in NOT_BY_LANDLOCK]
        cell.use_sandbox(SandboxConfig(mode=mode, network=False))
    with people(cell.root) as around:
        before = cell.fingerprint()
        results = cell.attempt(names, around)
        return results, cell.fingerprint() == before


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return attempt_all(tmp_path_factory.mktemp("bare"), "off")[0]


@pytest.fixture(scope="module")
def landlocked(tmp_path_factory: pytest.TempPathFactory) -> tuple[Results, bool]:
    return attempt_all(tmp_path_factory.mktemp("landlock"), "landlock")


@pytest.fixture(scope="module")
def bubblewrapped(tmp_path_factory: pytest.TempPathFactory) -> tuple[Results, bool]:
    return attempt_all(tmp_path_factory.mktemp("bwrap"), "bubblewrap")


_BY_ROOT = () if os.geteuid() else (*ROOT, *UNAPPROVED_ROOT)
SURE = [attempt.__name__ for attempt in (*ANYBODY, *UNAPPROVED, *_BY_ROOT)]


@pytest.mark.parametrize("name", SURE)
def test_where_nobody_holds_it_the_attempt_goes(bare: Results, name: str) -> None:
    """Else it would prove nothing that it fails elsewhere."""
    assert bare[name] == "escaped"


@needs_landlock
@pytest.mark.parametrize("name", [name for name in NAMES if name not in NOT_BY_LANDLOCK])
def test_landlock_holds(landlocked: tuple[Results, bool], name: str) -> None:
    assert landlocked[0][name].startswith("refused")


@needs_bubblewrap
@pytest.mark.parametrize("name", NAMES)
def test_bubblewrap_holds(bubblewrapped: tuple[Results, bool], name: str) -> None:
    assert bubblewrapped[0][name].startswith("refused")


@needs_landlock
def test_landlock_leaves_the_world_as_it_was(landlocked: tuple[Results, bool]) -> None:
    assert landlocked[1]


@needs_bubblewrap
def test_bubblewrap_leaves_the_world_as_it_was(bubblewrapped: tuple[Results, bool]) -> None:
    assert bubblewrapped[1]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_command_that_nobody_approved_gets_out_in_no_way_at_all(tmp_path: Path, backend: SandboxMode) -> None:
    """Not even by attributes, which Landlock does not know; and it reads neither the home nor what others run."""
    results, is_as_it_was = attempt_all(tmp_path, backend, is_unapproved=True)
    assert set(results) == set(ALL)
    assert {name: word for name, word in results.items() if not word.startswith("refused")} == {}
    assert is_as_it_was


@needs_landlock
@pytest.mark.parametrize("abi", [3, 5])
def test_the_landlock_of_older_kernels_holds_as_well(tmp_path: Path, abi: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel, "landlock_abi", lambda: abi)
    results, is_as_it_was = attempt_all(tmp_path, "landlock")
    gone = {name for name, word in results.items() if not word.startswith("refused")}
    assert gone <= {"signal_a_process"}  # that came with the sixth
    assert is_as_it_was


@needs_landlock
@pytest.mark.parametrize("abi", [3, 5])
def test_the_read_only_sandbox_holds_on_older_kernels_as_well(
    tmp_path: Path, abi: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also without Landlock's scopes: then signals are refused by the filter of calls."""
    monkeypatch.setattr(kernel, "landlock_abi", lambda: abi)
    results, is_as_it_was = attempt_all(tmp_path, "landlock", is_unapproved=True)
    assert {name: word for name, word in results.items() if not word.startswith("refused")} == {}
    assert is_as_it_was
