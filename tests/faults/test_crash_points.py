"""A real process is killed at every failpoint; the next server keeps P1, P2, P6, P13 and P14 all the same."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Generator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.faults.aftermath import at_rest, check_aftermath, end_leftovers
from tests.faults.places import RECOVERY, STORY, UPGRADE
from tests.faults.processes import Died, places_passed, run_child

# In the middle of everything: work is left in every state, and one run is cancelled but has not ended.
MIDDLE = "cancel.published@6"
STORY_S = 1.0  # about how long it takes on an idle machine; a random kill may come at any moment of it
RANDOM_KILLS = 20
SETTLE = {"KEDGE_SETTLE": "1"}  # long processes that a resumed turn starts end at once; those of a dead one do not

FIRST_HITS = sorted(STORY)
LATER_HITS = sorted(f"{name}@{hits // 2 + 1}" for name, hits in STORY.items() if hits > 1)


@pytest.fixture(autouse=True)
def settling(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Generator[None]:
    for name, value in SETTLE.items():
        monkeypatch.setenv(name, value)
    yield
    end_leftovers(tmp_path)


class Dead(NamedTuple):
    """A server that was killed in the middle of everything, and its store as it was then."""

    root: Path
    died: Died
    data: Path

    def restored(self) -> Path:
        """The same place again: a workspace is found by its path."""
        shutil.rmtree(self.root / "data")
        shutil.copytree(self.data, self.root / "data")
        return self.root


@pytest.fixture(scope="module")
def dead(tmp_path_factory: pytest.TempPathFactory) -> Generator[Dead]:
    root = tmp_path_factory.mktemp("dead")
    yield killed_in_the_middle(root)
    end_leftovers(root)


def killed_in_the_middle(root: Path) -> Dead:
    died = run_child("tell", root, kill_at=MIDDLE)
    assert died.is_killed, f"{died.code}: {died.errors}"
    return Dead(root, died, shutil.copytree(root / "data", root / "data-of-the-dead"))


def test_no_failpoint_is_forgotten(tmp_path: Path) -> None:
    passed = places_passed("tell", tmp_path)
    assert sorted(passed) == sorted(STORY), "places.py is not what the story passes"
    too_few = {name: (passed[name], hits) for name, hits in STORY.items() if passed[name] < hits}
    assert not too_few, "the story passes these less often than places.py says"


def test_no_failpoint_of_a_recovery_is_forgotten(tmp_path: Path) -> None:
    run_child("tell", tmp_path, kill_at=MIDDLE)
    assert sorted(places_passed("resume", tmp_path, SETTLE)) == sorted(RECOVERY)


async def test_the_story_that_nobody_kills_keeps_everything(tmp_path: Path) -> None:
    died = run_child("tell", tmp_path)
    assert died.code == 0, died.errors
    await check_aftermath(tmp_path, died)


@pytest.mark.parametrize("place", [*FIRST_HITS, *LATER_HITS])
async def test_killed_at(place: str, tmp_path: Path) -> None:
    died = run_child("tell", tmp_path, kill_at=place)
    assert died.is_killed, f"{died.code}: {died.errors}"
    await check_aftermath(tmp_path, died)


@pytest.mark.parametrize("place", RECOVERY)
async def test_killed_again_while_recovering_at(place: str, dead: Dead, tmp_path: Path) -> None:
    if place == "processes.told":
        dead = killed_in_the_middle(tmp_path)  # with a process that no other test has ended
    root = dead.restored()
    again = run_child("resume", root, kill_at=place, env=SETTLE)
    assert again.is_killed, f"{again.code}: {again.errors}"
    await check_aftermath(root, dead.died, again)


@pytest.mark.parametrize("place", UPGRADE)
def test_killed_while_upgrading_at(place: str, dead: Dead) -> None:
    root = dead.restored()
    before = at_rest(root)
    died = run_child("upgrade", root, kill_at=place)
    assert died.is_killed, f"{died.code}: {died.errors}"
    assert at_rest(root) == before
    upgraded = run_child("upgrade", root)
    assert upgraded.code == 0, upgraded.errors
    assert at_rest(root) == before


@pytest.mark.parametrize("number", range(RANDOM_KILLS))
async def test_killed_at_a_random_moment(number: int, tmp_path: Path) -> None:
    seed = os.environ.get("KEDGE_SEED") or str(random.SystemRandom().randrange(1_000_000))
    after_s = random.Random(f"{seed}-{number}").uniform(0.0, STORY_S)
    print(f"KEDGE_SEED={seed}: killed after {after_s:.4f} s")
    died = run_child("tell", tmp_path, after_s=after_s)
    await check_aftermath(tmp_path, died)
