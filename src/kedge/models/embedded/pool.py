"""Child processes of embedded models: started on demand, shared by all sessions, stopped when idle, restarted if they
die."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import shutil
import tempfile
from collections.abc import AsyncGenerator
from pathlib import Path

import msgspec

from kedge.models.embedded.child_process import Child
from kedge.models.embedded.settings import Settings
from kedge.models.errors import ConfigError
from kedge.protocol.address import AddressError, UnixAddress, make_private_dir

MAX_CHILDREN = 2  # models in memory; a third waits until one is unused
MAX_SOCKET_BYTES = 100  # of a path: the limit of all kernels


class _Model:
    """One model: its child process if it is loaded, and the number of users."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.users = 0
        self.child: Child | None = None
        self.lock = asyncio.Lock()  # one start for all who wait
        self.unloading: asyncio.TimerHandle | None = None


class Pool:
    """`address` is the server's socket: those of the models are beside it, in a private directory (P16)."""

    def __init__(self, address: UnixAddress, idle_s: float, max_children: int = MAX_CHILDREN) -> None:
        self._directory = Path(address.path).with_suffix(".models")
        self._idle_s = idle_s
        self._max_children = max_children
        self._models: dict[Settings, _Model] = {}
        self._freed = asyncio.Event()  # a model became unused
        self._numbers = itertools.count(1)
        self._has_directory = False
        self._ending: set[asyncio.Task[None]] = set()

    @contextlib.asynccontextmanager
    async def using(self, settings: Settings, name: str) -> AsyncGenerator[str, None]:
        """Yield the socket of a running child, which is not stopped while it is in use; it may still crash."""
        model = self._models.setdefault(settings, _Model(name))
        model.users += 1
        if model.unloading is not None:
            model.unloading.cancel()
            model.unloading = None
        try:
            async with model.lock:
                child = await self._load(model, settings)
            yield child.settings.socket
        finally:
            model.users -= 1
            if model.users == 0:
                model.unloading = asyncio.get_running_loop().call_later(self._idle_s, self._start_unloading, model)
                self._freed.set()

    async def close(self) -> None:
        for model in self._models.values():
            if model.unloading is not None:
                model.unloading.cancel()
        children = [model.child for model in self._models.values() if model.child is not None]
        await asyncio.gather(*(child.stop() for child in children), *self._ending, return_exceptions=True)
        self._models.clear()
        if self._has_directory:
            shutil.rmtree(self._directory, ignore_errors=True)

    @property
    def children(self) -> list[Child]:
        """The running ones."""
        return [model.child for model in self._models.values() if model.child is not None and model.child.is_alive]

    def is_loaded(self, settings: Settings) -> bool:
        model = self._models.get(settings)
        return model is not None and model.child is not None and model.child.is_alive

    async def _load(self, model: _Model, settings: Settings) -> Child:
        if model.child is not None:
            if model.child.is_alive:
                return model.child
            await _take(model).stop()  # it died: clean up
        await self._make_room()
        self._make_directory()
        child = Child(
            msgspec.structs.replace(settings, socket=str(self._directory / f"{next(self._numbers)}.sock")), model.name
        )
        model.child = child  # counts for `max_children` from now on
        try:
            await child.start()
        except BaseException:
            model.child = None
            raise
        return child

    async def _make_room(self) -> None:
        while len(loaded := [model for model in self._models.values() if model.child]) >= self._max_children:
            self._freed.clear()
            if idle := next((model for model in loaded if model.users == 0), None):
                await _take(idle).stop()
            else:
                await self._freed.wait()

    def _start_unloading(self, model: _Model) -> None:
        if model.users:
            return
        self._models = {settings: other for settings, other in self._models.items() if other is not model}
        if model.child is not None:
            task = asyncio.get_running_loop().create_task(_take(model).stop())
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)

    def _make_directory(self) -> None:
        """Make it once, and remove leftovers: one server owns the data directory, so they are of a dead one."""
        if self._has_directory:
            return
        if len(os.fsencode(self._directory / "99999.sock")) > MAX_SOCKET_BYTES:
            self._directory = Path(tempfile.mkdtemp(prefix="kedge-"))  # also private
        else:
            self._make_beside_server()
        self._has_directory = True

    def _make_beside_server(self) -> None:
        try:
            make_private_dir(str(self._directory.parent))
            shutil.rmtree(self._directory, ignore_errors=True)
            make_private_dir(str(self._directory))
        except AddressError as error:
            raise ConfigError("bad_config", str(error)) from error


def _take(model: _Model) -> Child:
    """Remove and return the child of a model."""
    child, model.child = model.child, None
    assert child is not None
    return child
