"""A server inside the test's own process, on a real socket: for what only shows from within."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple, TypeVar

from kedge.config.configs import Configs
from kedge.engine.engine import Engine
from kedge.server.app import Application
from kedge.server.http import Context, Route
from kedge.server.listener import Listener, bind
from kedge.server.metrics import Metrics
from kedge.server.routes import ROUTES
from kedge.store.sqlite.store import SqliteStore
from kedge.tools.search.file_index import FileIndex
from tests.server.client import LIMIT_S, Client, unix
from tests.server.scripted import ScriptedAgent
from tests.support.stores import write_empty_database

T = TypeVar("T")


class Inside(NamedTuple):
    client: Client
    engine: Engine
    metrics: Metrics
    agent: ScriptedAgent

    async def ask(self, work: Callable[..., T], *args: object) -> T:
        """The test's client blocks, so it works in a thread."""
        async with asyncio.timeout(LIMIT_S):
            return await asyncio.to_thread(work, *args)

    async def until(self, is_true: Callable[[], bool]) -> None:
        async with asyncio.timeout(LIMIT_S):
            while not is_true():  # noqa: ASYNC110 - what is looked at does not tell
                await asyncio.sleep(0)


@asynccontextmanager
async def serving(directory: Path, *routes: Route) -> AsyncGenerator[Inside]:
    loop = asyncio.get_running_loop()
    agent, metrics = ScriptedAgent(), Metrics(loop.time)
    write_empty_database(directory / "data")
    store = SqliteStore.open(directory / "data")
    engine = Engine(store, agent.turns, new_id=lambda: secrets.token_hex(8), observe=metrics.observe_events)
    await engine.start()
    configs = Configs({"XDG_CONFIG_HOME": str(directory / "config"), "XDG_CONFIG_DIRS": str(directory / "etc")})
    configs.set_listener(store.append_config_changed)
    context = Context(engine, agent, metrics, lambda: b"{}", lambda: None, configs, FileIndex(), loop.create_future())
    address = unix(directory / "run" / "x.sock")
    listener = Listener(bind(address), Application(context, (*ROUTES, *routes)), engine.is_agents_process)
    await listener.start()
    try:
        yield Inside(Client(address), engine, metrics, agent)
    finally:
        await engine.stop(grace_s=0)
        context.stopped.set_result(None)
        await listener.close()
        await configs.close()
        await store.close()
