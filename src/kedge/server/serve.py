"""The life of a server: open the store, listen, work, and leave in order (P15)."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from kedge.config.configs import Configs
from kedge.engine.engine import Engine
from kedge.engine.processes import cgroups
from kedge.engine.processes.reaper import Reaper
from kedge.files.versions import Versions
from kedge.protocol.address import Address, TcpAddress, UnixAddress, default_address, token_path
from kedge.server.app import App, Application, Receive, Scope, Send
from kedge.server.auth import Guard, check_token, make_token
from kedge.server.connections import raise_descriptor_limit
from kedge.server.context import Agent, Context
from kedge.server.listener import Listener, bind
from kedge.server.metrics import Metrics
from kedge.server.openapi import document
from kedge.server.routes import OPERATIONS
from kedge.store.sqlite.store import SqliteStore
from kedge.tools.search.file_index import Names

log = logging.getLogger(__name__)


class Settings(NamedTuple):
    data_dir: str
    host: Address | None = None  # beside the data directory's own socket
    token: str | None = None
    token_file: str | None = None
    allow_remote: bool = False
    allowed_hosts: tuple[str, ...] = ()
    idle_s: float | None = None  # leave after that long without work; None: stay


OnReady = Callable[[list[Address]], None]


def run(settings: Settings, agent: Agent, configs: Configs, on_ready: OnReady, on_left: Callable[[], None]) -> None:
    """Serve until told to leave. At `on_left` all is written and closed; what ignores its cancellation may linger."""
    raise_descriptor_limit()
    asyncio.run(_serve(settings, agent, configs, on_ready, on_left))


async def _serve(
    settings: Settings, agent: Agent, configs: Configs, on_ready: OnReady, on_left: Callable[[], None]
) -> None:
    store = SqliteStore.open(Path(settings.data_dir))  # owns the directory from here on
    try:
        await _serve_from(store, settings, agent, configs, on_ready)
        await store.close()
    finally:
        store.abandon()
    on_left()


async def _serve_from(
    store: SqliteStore, settings: Settings, agent: Agent, configs: Configs, on_ready: OnReady
) -> None:
    loop = asyncio.get_running_loop()
    leaving = Leaving()
    for sig in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(sig, leaving.begin)
    with contextlib.ExitStack() as sockets:  # gone before the directory is free for another server
        token = _token(settings)  # before anything begins that would have to be stopped again
        bound = _bind_all(settings, sockets)
        metrics = Metrics(loop.time)
        await metrics.begin(store)
        reaper = Reaper()
        sockets.callback(reaper.close)
        if not reaper.start():
            log.info("this machine hands no orphans to us: those of tools are found by their mark alone")
        cgroups.remove_left_over()
        if cgroups.home() is None:
            log.info("commands get no control group here: a daemon that hides from us on purpose may outlive its run")
        engine = Engine(
            store,
            agent.turns,
            new_id=lambda: secrets.token_hex(8),
            observe=metrics.committed,
            versions=Versions(Path(settings.data_dir)),
        )
        await engine.start()
        configs.set_listener(store.append_config_changed)
        over: asyncio.Future[None] = loop.create_future()
        context = Context(engine, agent, metrics, lambda: document(OPERATIONS), leaving.begin, configs, Names(), over)
        app = Application(context, OPERATIONS)
        listeners = [
            Listener(sock, _guarded(app, address, token, settings), engine.is_agents_process) for address, sock in bound
        ]
        for listener in listeners:
            await listener.start()
        log.info("listening on %s", ", ".join(str(address) for address, _ in bound))
        on_ready([address for address, _ in bound])
        warming = loop.create_task(agent.warm_up())
        await leaving.wait(lambda: _idle_until(engine, metrics, settings.idle_s))
        log.info("leaving")
        await _stop(engine, leaving)
        over.set_result(None)
        await asyncio.gather(*(listener.close() for listener in listeners))
        await configs.close()
        warming.cancel()
        await asyncio.gather(warming, return_exceptions=True)
        await agent.close()


async def _stop(engine: Engine, leaving: Leaving) -> None:
    stopping = asyncio.ensure_future(engine.stop())
    await asyncio.wait({stopping, leaving.again}, return_when=asyncio.FIRST_COMPLETED)
    if not stopping.done():
        log.info("in a hurry")
        await engine.stop()
    await stopping


class Leaving:
    """The wish to leave: a signal, a command, or a long idle time. Wished twice, it is urgent."""

    def __init__(self) -> None:
        self.again: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._wished = asyncio.Event()

    def begin(self) -> None:
        if self._wished.is_set() and not self.again.done():
            self.again.set_result(None)
        self._wished.set()

    async def wait(self, idle_until: Callable[[], float | None]) -> None:
        """Return when leaving is wished, or nothing happened until `idle_until()`, which is asked again each time."""
        while not self._wished.is_set() and ((deadline := idle_until()) is None or deadline > _now()):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(deadline):
                    await self._wished.wait()


def _now() -> float:
    return asyncio.get_running_loop().time()


def _idle_until(engine: Engine, metrics: Metrics, idle_s: float | None) -> float | None:
    """When the server may leave by itself: never with open runs, nor while somebody is connected."""
    if idle_s is None:
        return None
    is_used = not engine.is_idle or metrics.open_requests > 0
    return (_now() if is_used else metrics.used_at) + idle_s


def _bind_all(settings: Settings, sockets: contextlib.ExitStack) -> list[tuple[Address, socket.socket]]:
    bound: list[tuple[Address, socket.socket]] = []
    wanted: list[Address] = []
    if not isinstance(settings.host, UnixAddress):
        wanted.append(default_address(settings.data_dir))
    if settings.host is not None:
        wanted.append(settings.host)
    for address in wanted:
        sock = bind(address, allow_remote=settings.allow_remote)
        sockets.callback(sock.close)
        if isinstance(address, UnixAddress):
            sockets.callback(_remove, address.path)
        else:
            address = TcpAddress(address.host, sock.getsockname()[1])  # port 0 was a wish for any
        bound.append((address, sock))
    return bound


def _remove(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def _token(settings: Settings) -> str:
    """What clients must know to come in by TCP; nothing when there is no such way."""
    if not isinstance(settings.host, TcpAddress):
        return ""
    if settings.token:
        return check_token(settings.token)
    return make_token(settings.token_file or token_path(settings.data_dir))


def _guarded(app: App, address: Address, token: str, settings: Settings) -> App:
    if isinstance(address, UnixAddress):
        return app
    return Guard(_authenticated(app), token, address, settings.allowed_hosts)


def _authenticated(app: App) -> App:
    """Tells the connection that what comes through it has shown the token."""

    async def call(scope: Scope, receive: Receive, send: Send) -> None:
        scope["state"]["authenticated"]()
        await app(scope, receive, send)

    return call
