"""A test of the tests: planted bugs are found, by the same episodes that find none in the engine as it is."""

from __future__ import annotations

import pytest

from tests.sim import mutants_of_events, mutants_of_runs, mutants_of_undo
from tests.sim.explore import explore

MUTANTS = {
    mutant.__name__: mutant
    for mutants in (mutants_of_runs, mutants_of_events, mutants_of_undo)
    for mutant in mutants.MUTANTS
}
MAX_EPISODES = 200  # most are found in the first ten

pytestmark = pytest.mark.timeout(180)  # all of it is work, not waiting: a busy machine only makes it longer


@pytest.mark.parametrize("name", MUTANTS)
def test_the_simulation_finds(name: str) -> None:
    for seed in range(1, MAX_EPISODES + 1):
        with MUTANTS[name]():
            _, failure = explore(seed)
        if failure is not None:
            print(f"found by seed {seed}: {failure}")
            return
    pytest.fail(f"{name} was not found in {MAX_EPISODES} episodes")
