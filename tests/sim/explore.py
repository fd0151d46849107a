"""Explores what can happen, episode by episode, each from one seed.

usage: python3 dev.py sim [--seed N] [--episodes N] [--seconds S] [--steps N] [-v]

An episode that breaks the contract prints its steps and the command that plays it again, exactly.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import shutil
import sys
import tempfile
import time
from pathlib import Path
from random import SystemRandom

from tests.sim.clients import Clients
from tests.sim.world import MAX_TURNS, Violation, World
from tests.support.invariants import check_all_ended, check_log

STEPS = 60
SHM = Path("/dev/shm")
SETTLE_S = 40.0  # longer than anything in a script that ends by itself, and a turn that ignores its cancel
SETTLE_ROUNDS = 60


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python3 dev.py sim", description="explore what can happen, seed by seed")
    parser.add_argument("--seed", type=int, help="the first episode's seed; a random one if not given")
    parser.add_argument("--episodes", type=int, help="how many (with --seed alone: one)")
    parser.add_argument("--seconds", type=float, help="stop after this time (60 if nothing else is given)")
    parser.add_argument("--steps", type=int, default=STEPS, help=f"of an episode ({STEPS})")
    parser.add_argument("-v", "--verbose", action="store_true", help="print every step of every episode")
    args = parser.parse_args(argv)

    first = SystemRandom().randrange(1 << 32) if args.seed is None else args.seed
    episodes = args.episodes or (1 if args.seed is not None and args.seconds is None else None)
    seconds = args.seconds or (None if episodes else 60.0)
    began = time.monotonic()
    done = 0
    while (episodes is None or done < episodes) and (seconds is None or time.monotonic() - began < seconds):
        seed = first + done
        done += 1
        trace, failure = explore(seed, args.steps)
        if args.verbose or failure is not None:
            print(*trace, sep="\n")
        if failure is not None:
            print(f"\nseed {seed}: {failure}\nto play it again: {command(seed, args.steps)}", flush=True)
            return 1
    took = time.monotonic() - began
    print(f"{done} episodes from seed {first} in {took:.1f} s: the contract held")
    return 0


def explore(seed: int, steps: int = STEPS) -> tuple[list[str], Violation | None]:
    """One episode: what happened, and what was wrong with it."""
    directory = Path(tempfile.mkdtemp(prefix="kedge-sim-", dir=SHM if SHM.is_dir() else None))
    gc.disable()  # a collection ends forgotten generators at its own time: that would be a second source of chance
    try:
        world = World(seed, directory)
        try:
            world.run(lambda world: play(world, steps))
        except Violation as violation:
            return world.trace, violation
        return world.trace, None
    finally:
        gc.enable()
        shutil.rmtree(directory)


def command(seed: int, steps: int) -> str:
    return f"python3 dev.py sim --seed {seed}" + (f" --steps {steps}" if steps != STEPS else "")


async def play(world: World, steps: int) -> None:
    await world.boot()
    for title in ("one", "two", "three")[: world.rng.randint(1, 3)]:
        await world.engine.create_session(world.workspace_id, title)
    clients = Clients(world)
    clients.add_reader(is_attentive=True)
    clients.add_reader()
    # Each episode leaves some things out and does others more: so rare combinations become common in some.
    weights = {name: weight * world.rng.choice((0, 1, 1, 3)) for name, (weight, _) in clients.actions.items()}
    weights["submit"] = clients.actions["submit"][0]
    troubles = {"crash": 2, "crash at commit": 2, "restart": 2, "full disk": 2, "bad reads": 1, "one bad write": 2}
    weights |= {name: weight * world.rng.choice((0, 0, 1, 2)) for name, weight in troubles.items()}
    for step in range(steps):
        what = world.rng.choices(list(weights), list(weights.values()))[0]
        if what in troubles:
            await trouble(world, clients, what)
        else:
            clients.actions[what][1]()
        await world.sleep(pause(world))
        if world.has_crashed:
            await world.crash()
            await world.boot()
        world.check()
        if step % 10 == 0:
            check_log(world.model.log)
            world.compare_with_file()
    await settle(world, clients)


async def trouble(world: World, clients: Clients, what: str) -> None:
    rng = world.rng
    match what:
        case "crash":
            await world.crash()
            await asyncio.sleep(pause(world))
            await world.boot()
        case "crash at commit":
            world.fuse = rng.randint(1, 4)
        case "restart":
            await restart(world, clients)
        case "full disk" | "bad reads":
            world.say(f"the disk fails: {what}")
            world.disk.is_full |= what == "full disk"
            world.disk.is_unreadable |= what == "bad reads"
            world.model.trouble_at = world.loop.time()
            world.loop.call_later(rng.choice((0.05, 1, 5)), heal, world)
        case _:
            world.disk.fail_once(rng.randint(1, 20))


def heal(world: World) -> None:
    if world.disk.is_failing:
        world.say("the disk is well again")
        world.model.trouble_at = world.loop.time()
    world.disk.heal()


async def restart(world: World, clients: Clients) -> None:
    """An orderly stop, with clients that do not wait for it, and at times a second signal or a crash in the middle."""
    rng = world.rng
    world.say("an orderly shutdown begins")
    world.model.stopping()
    stopping = world.spawn(world.engine.shutdown(rng.choice((0, 0.1, 5))))
    while not stopping.done():
        match rng.choices(("wait", "submit", "cancel", "again", "crash"), (20, 3, 3, 1, 1))[0]:
            case "submit":
                clients.submit()
            case "cancel":
                clients.cancel_session()
            case "again":
                world.spawn(world.engine.shutdown())
            case "crash":
                world.kill()
            case _:
                pass
        await world.sleep(pause(world) * 0.2)
        if world.has_crashed:
            await world.crash()
            break
    else:
        await world.stopped()
    await asyncio.sleep(pause(world))
    await world.boot()


def pause(world: World) -> float:
    kind = world.rng.choices((0.0, 0.01, 0.3, 3.0), (4, 3, 2, 1))[0]
    return world.rng.random() * kind


async def settle(world: World, clients: Clients) -> None:
    """Let everything come to its end: what hangs is cancelled, what asks is answered, what waits must go on alone."""
    world.say("settling")
    world.disk.heal()
    world.fuse = 0
    world.dies_in_an_undo = False
    world.dies_waiting = 0.0
    world.model.trouble_at = max(world.model.trouble_at, world.loop.time())
    for reader in world.readers:
        reader.is_in_a_hurry = True
    await asyncio.sleep(SETTLE_S)
    for _ in range(SETTLE_ROUNDS):
        if not world.model.open_runs():
            break
        before = len(world.model.log)
        clients.answer_all()
        await asyncio.sleep(SETTLE_S)
        world.check()
        if len(world.model.log) > before:
            continue
        active = [run for run in world.model.open_runs() if run.state == "running" and run.merged_into is None]
        busy = {run.session_id for run in active}
        stranded = [run.run_id for run in world.model.open_runs() if run.session_id not in busy]
        has_room = sum(run.parent_run_id is None and run.waiting is None for run in active) < MAX_TURNS
        assert not (stranded and has_room), f"{stranded} wait, and nothing runs in their session"
        for run in active:
            clients.cancel(run)
    await asyncio.sleep(SETTLE_S)
    world.check()
    await rest(world)


async def rest(world: World) -> None:
    """Nothing is open any more: the records are whole, and nothing was forgotten in memory."""
    engine, model = world.engine, world.model
    check_log(model.log)
    check_all_ended(model.log)
    world.compare_with_file()
    assert not world.half_deleted(), f"deleted and still there: {world.half_deleted()}"
    assert not world.half_undone(), f"begun to be undone, and never done: {world.half_undone()}"
    for reader in world.readers:
        assert reader.seq == len(model.log), f"{reader.name} is at {reader.seq} of {len(model.log)}"
    assert not engine.actors, f"actors are left: {list(engine.actors.tasks)}"
    assert not engine.runs.env, f"environments are left: {list(engine.runs.env)}"
    assert not engine.runs.ends, f"{len(engine.runs.ends)} waiters are left"
    assert not engine.answers, f"{len(engine.answers)} waiters are left"
    for run_id, told in model.ends.items():
        end = await engine.store.run_end(world.workspace_id, run_id)
        is_purged = told.session_id in model.deleted and world.floor() > 0
        assert end == told or is_purged, f"{run_id} ended as {end}, but told {told}"
    await engine.shutdown()
    await world.stopped()
    world.say(f"readers were told: {', '.join(sorted(model.seen_by_readers))}")


if __name__ == "__main__":
    sys.exit(main())
