"""Runs the server: opens the store, listens, serves, and shuts down in order (P15)."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import secrets
import signal
import socket
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

from kedge.config.configs import Configs
from kedge.engine.engine import Engine
from kedge.engine.processes import cgroups
from kedge.engine.processes.reaper import Reaper
from kedge.files.versions import Versions
from kedge.protocol.address import Address, TcpAddress, UnixAddress, default_address, token_path
from kedge.server.app import Application
from kedge.server.auth import AuthMiddleware, check_token, make_token
from kedge.server.connections import raise_descriptor_limit
from kedge.server.exchange import App
from kedge.server.http import Agent, Context
from kedge.server.listener import Listener, bind
from kedge.server.metrics import Metrics
from kedge.server.openapi import document
from kedge.server.routes import ROUTES
from kedge.store.sqlite.store import SqliteStore
from kedge.tools.search.file_index import FileIndex

log = logging.getLogger(__name__)


class Settings(NamedTuple):
    data_dir: str
    host: Address | None = None  # in addition to the data directory's own socket
    token: str | None = None
    token_file: str | None = None
    allow_remote: bool = False
    allowed_hosts: tuple[str, ...] = ()
    idle_s: float | None = None  # stop after that long without work; None: never


OnReady = Callable[[list[Address]], None]


def run(settings: Settings, agent: Agent, configs: Configs, on_ready: OnReady, on_stopped: Callable[[], None]) -> None:
    """Serve until asked to stop. `on_stopped` is called when all is written and closed; stuck threads may still run."""
    raise_descriptor_limit()
    asyncio.run(_serve(settings, agent, configs, on_ready, on_stopped))


async def _serve(
    settings: Settings, agent: Agent, configs: Configs, on_ready: OnReady, on_stopped: Callable[[], None]
) -> None:
    store = SqliteStore.open(Path(settings.data_dir))  # owns the directory from here on
    try:
        await _serve_from(store, settings, agent, configs, on_ready)
        await store.close()
    finally:
        store.abandon()
    on_stopped()


async def _serve_from(
    store: SqliteStore, settings: Settings, agent: Agent, configs: Configs, on_ready: OnReady
) -> None:
    loop = asyncio.get_running_loop()
    shutdown = ShutdownRequest()
    for sig in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(sig, shutdown.request)
    with contextlib.ExitStack() as sockets:  # removed before another server can own the directory
        token = _load_token(settings)  # may fail: before anything starts that would have to be stopped
        bound = _bind_all(settings, sockets)
        metrics = Metrics(loop.time)
        await metrics.begin(store)
        reaper = Reaper()
        sockets.callback(reaper.close)
        if not reaper.start():
            log.info("cannot adopt orphaned processes of tools; they are found by a mark in their environment")
        cgroups.remove_unused()
        if cgroups.home() is None:
            log.info("no control groups here: a daemon that hides on purpose may outlive its run")
        engine = Engine(
            store,
            agent.turns,
            new_id=lambda: secrets.token_hex(8),
            observe=metrics.observe_events,
            versions=Versions(Path(settings.data_dir)),
        )
        await engine.start()
        configs.set_listener(partial(_tell_config_changed, engine, agent))
        stopped: asyncio.Future[None] = loop.create_future()
        context = Context(
            engine, agent, metrics, lambda: document(ROUTES), shutdown.request, configs, FileIndex(), stopped
        )
        app = Application(context, ROUTES)
        listeners = [
            Listener(sock, _with_auth(app, address, token, settings), engine.is_agents_process)
            for address, sock in bound
        ]
        for listener in listeners:
            await listener.start()
        log.info("listening on %s", ", ".join(str(address) for address, _ in bound))
        on_ready([address for address, _ in bound])
        warming = loop.create_task(_warm_up(agent))
        await shutdown.wait(lambda: _idle_until(engine, metrics, settings.idle_s))
        log.info("stopping")
        await _stop(engine, shutdown)
        stopped.set_result(None)
        await asyncio.gather(*(listener.close() for listener in listeners))
        await configs.close()
        warming.cancel()
        await asyncio.gather(warming, return_exceptions=True)
        await agent.close()


async def _warm_up(agent: Agent) -> None:
    """Load the agent, then turn on garbage collection. Objects of imported modules stay, so they are exempt from it."""
    try:
        await agent.warm_up()
    finally:
        gc.freeze()
        gc.enable()


async def _stop(engine: Engine, shutdown: ShutdownRequest) -> None:
    stopping = asyncio.ensure_future(engine.stop())
    await asyncio.wait({stopping, shutdown.repeated}, return_when=asyncio.FIRST_COMPLETED)
    if not stopping.done():
        log.info("asked to stop again: not waiting for turns")
        await engine.stop()
    await stopping


class ShutdownRequest:
    """A request to stop, by a signal or a command. The second one makes it urgent."""

    def __init__(self) -> None:
        self.repeated: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._requested = asyncio.Event()

    def request(self) -> None:
        if self._requested.is_set() and not self.repeated.done():
            self.repeated.set_result(None)
        self._requested.set()

    async def wait(self, idle_until: Callable[[], float | None]) -> None:
        """Return when a stop is requested, or at `idle_until()`, which is evaluated again when that time has come."""
        while not self._requested.is_set() and ((deadline := idle_until()) is None or deadline > _now()):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(deadline):
                    await self._requested.wait()


def _now() -> float:
    return asyncio.get_running_loop().time()


def _idle_until(engine: Engine, metrics: Metrics, idle_s: float | None) -> float | None:
    """Return when the server stops by itself; None: never. Open runs and connected clients keep it running."""
    if idle_s is None:
        return None
    is_used = not engine.is_idle or metrics.open_requests > 0
    return (_now() if is_used else metrics.used_at) + idle_s


async def _tell_config_changed(engine: Engine, agent: Agent, workspace_id: str) -> None:
    await engine.store.append_config_changed(workspace_id)
    await agent.config_changed(workspace_id, engine.root_of(workspace_id), engine.host_of(workspace_id))


def _bind_all(settings: Settings, sockets: contextlib.ExitStack) -> list[tuple[Address, socket.socket]]:
    bound: list[tuple[Address, socket.socket]] = []
    addresses: list[Address] = []
    if not isinstance(settings.host, UnixAddress):
        addresses.append(default_address(settings.data_dir))
    if settings.host is not None:
        addresses.append(settings.host)
    for address in addresses:
        sock = bind(address, allow_remote=settings.allow_remote)
        sockets.callback(sock.close)
        if isinstance(address, UnixAddress):
            sockets.callback(Path(address.path).unlink, missing_ok=True)
        else:
            address = TcpAddress(address.host, sock.getsockname()[1])  # port 0 means any free port
        bound.append((address, sock))
    return bound


def _load_token(settings: Settings) -> str:
    """Return the token for TCP clients; empty if the server does not listen on TCP."""
    if not isinstance(settings.host, TcpAddress):
        return ""
    if settings.token:
        return check_token(settings.token)
    return make_token(settings.token_file or token_path(settings.data_dir))


def _with_auth(app: App, address: Address, token: str, settings: Settings) -> App:
    if isinstance(address, UnixAddress):
        return app
    return AuthMiddleware(app, token, address, settings.allowed_hosts)
