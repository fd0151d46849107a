"""Whoever changes a tree, and when: undo and redo keep what the user wrote, and take away what the agent wrote."""

from __future__ import annotations

import asyncio
import tempfile
from collections import Counter
from pathlib import Path
from random import Random, SystemRandom

import pytest

from tests.engine.change_histories import World
from tests.support.harness import Kedge
from tests.support.stores import STORES

pytestmark = pytest.mark.slow

SHM = Path("/dev/shm")
STEPS = 25
KNOWN = 20  # episodes of a fixed seed, so that every kind of undo and redo happens
NEW = 12
LONG = 1_000
KINDS = [f"{what} of {kind}" for what in ("undos", "redos") for kind in ("both", "files", "conversation")]


async def play(seed: int) -> World:
    rng = Random(seed)
    with tempfile.TemporaryDirectory(dir=SHM if SHM.is_dir() else None) as directory:
        root = Path(directory).resolve() / "workspace"
        root.mkdir()
        async with Kedge(STORES[0], root.parent) as kedge:
            world = World(kedge, root, rng)
            await world.begin()
            try:
                for _ in range(STEPS):
                    await step(world)
                while world.held:
                    await world.go_on()
                for _ in range(6):
                    await world.undo()
            except BaseException:
                print(f"seed {seed}", *world.story, sep="\n")
                raise
            return world


async def step(world: World) -> None:
    match world.rng.choices(
        ("run", "hold", "go on", "user", "job", "end job", "undo", "redo", "crash"),
        (6, 2, 2, 6, 3, 1, 6, 2, 0.4),
    )[0]:
        case "run":
            await world.run()
        case "hold":
            await world.run(holds=True)
        case "go on":
            await world.go_on()
        case "user":
            if not world.windows:
                world.user()
        case "job":
            if not world.windows:
                world.job()
        case "end job":
            world.end_job()
        case "undo":
            await world.undo()
            if world.rng.random() < 0.4:
                await world.redo()
        case "redo":
            await world.redo()
        case _:
            await world.crash()


def hold(first: int, episodes: int) -> Counter[str]:
    print(f"seeds from {first}")
    counts: Counter[str] = Counter()
    for seed in range(first, first + episodes):
        counts.update(asyncio.run(play(seed)).counts)
    return counts


def test_undo_keeps_what_the_user_wrote_and_takes_what_the_agent_wrote() -> None:
    counts = hold(1, KNOWN)
    for what in ("undos", "redos", "undos refused", "files undone", "files left", *KINDS):
        assert counts[what] > 0, f"{what} never happened: {counts}"


def test_undo_keeps_what_the_user_wrote_in_new_episodes() -> None:
    hold(SystemRandom().randrange(1 << 32), NEW)


@pytest.mark.long
@pytest.mark.timeout(0)
def test_undo_keeps_what_the_user_wrote_in_many_episodes() -> None:
    print(hold(SystemRandom().randrange(1 << 32), LONG))
