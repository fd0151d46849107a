"""A soak from its beginning to its end: the load, the kills, the settling, and the reading of all that is left."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import shutil
import tempfile
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path
from random import Random

from kedge.protocol.events import Event
from tests.e2e.home import Home
from tests.e2e.project import FILES
from tests.soak import collection, plans
from tests.soak.api import WorkspaceApi
from tests.soak.commands import Commands
from tests.soak.driver import Driver, Tally
from tests.soak.forms import SESSIONS, Form
from tests.soak.people import People
from tests.soak.plans import Deeds
from tests.soak.readers import Subscriber
from tests.soak.record import Machine, Reading, Record
from tests.soak.server import STDERR, SoakServer, long_processes
from tests.support.model_control import ModelControl, model_process
from tests.support.wires import access

SETTLE_S = 180.0  # until nothing is busy any more; seconds are enough, the rest is a busy machine
KEPT_CALLS = 50  # of the model server, which otherwise keeps thousands
RESTLESS = (0.0, 0.5, 0.9)  # of the readers of each workspace, beside the one that stays
BY_COMMAND = 0.3  # of the restarts
CHANGING_S = 3.0  # how long a reader that vanishes stays


class SoakHome(Home):
    """Its server knows the scripted model over three wires."""

    @property
    def env(self) -> dict[str, str]:
        key = "key-for-tests"
        return {**super().env, **access("anthropic", self.models, key), **access("gemini", self.models, key)}


@dataclasses.dataclass
class Outcome:
    seed: int
    records: list[Record]
    machine: Machine
    tally: Tally
    took_s: float
    people_left: int = 0


class Place:
    """One workspace with its readers and people."""

    def __init__(self, server: SoakServer, record: Record, rng: Random) -> None:
        self.record = record
        self.api = WorkspaceApi(server, record)
        self.people = People(self.api, Random(rng.random()))
        self.keeper = self._subscriber(server, Reading("keeper", is_faithful=True), rng, 0.0)
        self.restless = [
            self._subscriber(server, Reading(f"reader {i}", is_faithful=i < 3), rng, RESTLESS[i % 3]) for i in range(6)
        ]
        self._server = server
        self._rng = Random(rng.random())

    def _subscriber(self, server: SoakServer, reading: Reading, rng: Random, restlessness: float) -> Subscriber:
        self.record.readings.append(reading)
        is_keeper = reading.name == "keeper"
        return Subscriber(
            *(server, self.api.path, reading, Random(rng.random())),
            restlessness=restlessness,
            on_event=self._saw if is_keeper else None,
        )

    def _saw(self, event: Event) -> None:
        self.api.saw(event)
        self.people.saw(event)

    async def passers_by(self) -> None:
        """Readers that come, look at the whole or at one session, and vanish for good."""
        for number in range(10**9):
            sessions = list({sent.body.session_id for sent in self.record.sent[-50:]})
            session_id = self._rng.choice(sessions) if sessions and self._rng.random() < 0.7 else None
            reading = Reading(f"passer-by {number}", session_id)
            self.record.readings.append(reading)
            reader = Subscriber(self._server, self.api.path, reading, Random(self._rng.random()), restlessness=0.3)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._rng.uniform(0.1, CHANGING_S)):
                    await reader.follow()


async def soak(form: Form, seed: int, progress: Callable[[str], None]) -> Outcome:
    began = time.monotonic()
    directory = Path(tempfile.mkdtemp(prefix="kedge-s-"))  # short: the path of a socket may have a hundred characters
    lifetime_s = form.load_s * 2 + 1_000
    try:
        with model_process("--lifetime-s", str(lifetime_s), "--kept-calls", str(KEPT_CALLS)) as (models, _):
            outcome = await _soak(SoakHome(directory, models), models, form, seed, progress)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    outcome.took_s = time.monotonic() - began
    return outcome


async def _soak(
    home: SoakHome, models: ModelControl, form: Form, seed: int, progress: Callable[[str], None]
) -> Outcome:
    rng, machine, tally = Random(seed), Machine(), Tally()
    server = SoakServer(home, machine)
    await server.start()
    try:
        places = [Place(server, await _workspace(server, i), rng) for i in range(form.workspaces)]
        commands = Commands(server)
        async with _beside(server.watch, *_readers(places)):
            async with _beside(*(place.passers_by for place in places)):
                await _load(server, places, models, commands, form, rng, tally, progress)
            progress("settling")
            await _settle(places, models, commands)
            machine.at_rest = server.look()
            await server.leave()
            progress("reading the logs")
            await server.start()  # nobody ever asked this one for anything: what it tells is the log and nothing else
            await _read(server, places)
        await server.leave()
    except BaseException:
        server.clean_up()
        raise
    machine.orphans = sorted(long_processes(server.mark))
    for place in places:
        place.record.lives = machine.lives
        await collection.from_database(home.data_dir, place.record)
        collection.marks(place.record, plans.MARKS)
    collection.disk(home.data_dir, machine, [place.record for place in places])
    machine.crashes = collection.crashes(home.directory / STDERR)
    return Outcome(seed, [place.record for place in places], machine, tally, 0.0, sum(p.people.left for p in places))


async def _workspace(server: SoakServer, number: int) -> Record:
    directory = server.home.directory / f"w{number}"
    for name, text in {**FILES, ".gitignore": "__pycache__/\nmarks/\n", "marks/all": ""}.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    git = await asyncio.create_subprocess_exec("git", "init", "-q", cwd=directory)
    assert await git.wait() == 0
    answer = await server.wire.ask("POST", "/v1/workspaces", {"path": str(directory)})
    assert answer.status == 200, answer
    return Record(f"w{number}", answer.body["id"], str(directory))


def _readers(places: list[Place]) -> list[Callable[[], Awaitable[None]]]:
    return [reader.follow for place in places for reader in (place.keeper, *place.restless)]


@contextlib.asynccontextmanager
async def _beside(*works: Callable[[], Awaitable[None]]) -> AsyncGenerator[None]:
    """They go on while the block does; one that fails fails the block."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(_awaited(work)) for work in works]
        yield
        for task in tasks:
            task.cancel()


async def _awaited(work: Callable[[], Awaitable[None]]) -> None:
    await work()


async def _load(
    server: SoakServer,
    places: list[Place],
    models: ModelControl,
    commands: Commands,
    form: Form,
    rng: Random,
    tally: Tally,
    progress: Callable[[str], None],
) -> None:
    is_over = asyncio.Event()
    deeds = [Deeds(place.record.name, f"{server.mark}{i}") for i, place in enumerate(places)]

    async def start_next(rng: Random) -> None:
        """By hand, or by the first command that finds no server."""
        if rng.random() < BY_COMMAND:
            place = rng.randrange(len(places))
            session_id = sessions[place]
            commands.begin_with_server(places[place].api, deeds[place], Random(rng.random()), session_id)
            await server.started_by_command()
        else:
            await server.start()

    sessions = [await place.api.new_session("of commands") for place in places]
    drivers = [
        Driver(
            *(f"s{i}", places[i % len(places)].api, deeds[i % len(places)], Random(rng.random())),
            *(models, commands, tally),
        )
        for i in range(SESSIONS)
    ]
    async with asyncio.TaskGroup() as group:
        ending = group.create_task(_end_after(form.load_s, is_over))
        killing = group.create_task(_kill(server, start_next, form, Random(rng.random()), tally, progress))
        working = [group.create_task(driver.work(form.actions, is_over)) for driver in drivers]
        await asyncio.wait(working)
        ending.cancel()
        await killing


async def _end_after(seconds: float, is_over: asyncio.Event) -> None:
    await asyncio.sleep(seconds)
    is_over.set()


async def _kill(
    server: SoakServer,
    start_next: Callable[[Random], Awaitable[None]],
    form: Form,
    rng: Random,
    tally: Tally,
    progress: Callable[[str], None],
) -> None:
    """At moments that nobody chose; each time another server goes on."""
    ways = ["kill"] * form.kills + ["leave"] * form.leaves
    rng.shuffle(ways)
    moments = sorted(rng.uniform(0, form.load_s * (1 - form.quiet_share)) for _ in ways)
    began = time.monotonic()
    for way, moment in zip(ways, moments, strict=True):
        await asyncio.sleep(max(rng.uniform(0, 1), began + moment - time.monotonic()))
        progress(f"server {server.life}: {way}")
        tally.done[f"server: {way}"] += 1
        await (server.kill() if way == "kill" else server.leave())
        await asyncio.sleep(rng.choice((0, 0, 0.5)))
        await start_next(rng)


async def _settle(places: list[Place], models: ModelControl, commands: Commands) -> None:
    """Nobody sends anything any more: what waits is helped or refused, and then nothing is busy."""
    commands.stop()
    for place in places:
        await place.people.close()
        for reader in place.restless:
            reader.calm_down()
        await asyncio.to_thread(models.release, *place.api.gates)  # one request: an hour makes thousands of them
    until = time.monotonic() + SETTLE_S
    while True:
        are_quiet = [await collection.is_quiet(place.api) for place in places]
        if (all(are_quiet) and commands.is_done) or time.monotonic() > until:
            break
        await asyncio.sleep(0.2)
    await commands.close()


async def _read(server: SoakServer, places: list[Place]) -> None:
    """By every way there is; and the readers that stayed are given time to hear the end."""
    for place in places:
        await collection.by_wire(server, place.api)
        head = len(place.record.log)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SETTLE_S):
                await asyncio.gather(*(reader.until(head) for reader in (place.keeper, *place.restless[:3])))
