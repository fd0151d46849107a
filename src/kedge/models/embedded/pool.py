"""The local models at work: a child each, started when it is needed, shared by all sessions, unloaded when idle, and
started again after it died."""

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

MAX_CHILDREN = 2  # models in memory; a third waits until one of them is not used
MAX_SOCKET_BYTES = 100  # of a path: what every kernel takes


class Place:
    """One model: its child, if it is loaded, and how many use it now."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.users = 0
        self.child: Child | None = None
        self.lock = asyncio.Lock()  # one start for all who wait for it
        self.unloading: asyncio.TimerHandle | None = None


class Pool:
    """`address` is the server's own socket: the models' are beside it, in a directory that only we can open (P16)."""

    def __init__(self, address: UnixAddress, idle_s: float, max_children: int = MAX_CHILDREN) -> None:
        self._directory = Path(address.path).with_suffix(".models")
        self._idle_s = idle_s
        self._max_children = max_children
        self._places: dict[Settings, Place] = {}
        self._freed = asyncio.Event()  # somebody left: look again
        self._numbers = itertools.count(1)
        self._has_directory = False
        self._ending: set[asyncio.Task[None]] = set()

    @contextlib.asynccontextmanager
    async def using(self, settings: Settings, name: str) -> AsyncGenerator[str, None]:
        """The socket of a child that runs. As long as it is used it is not unloaded; it may die all the same."""
        place = self._places.setdefault(settings, Place(name))
        place.users += 1
        if place.unloading is not None:
            place.unloading.cancel()
            place.unloading = None
        try:
            async with place.lock:
                child = await self._loaded(place, settings)
            yield child.settings.socket
        finally:
            place.users -= 1
            if place.users == 0:
                place.unloading = asyncio.get_running_loop().call_later(self._idle_s, self._unload_soon, place)
                self._freed.set()

    async def close(self) -> None:
        for place in self._places.values():
            if place.unloading is not None:
                place.unloading.cancel()
        children = [place.child for place in self._places.values() if place.child is not None]
        await asyncio.gather(*(child.stop() for child in children), *self._ending, return_exceptions=True)
        self._places.clear()
        if self._has_directory:
            shutil.rmtree(self._directory, ignore_errors=True)

    @property
    def children(self) -> list[Child]:
        """Those that run."""
        return [place.child for place in self._places.values() if place.child is not None and place.child.is_alive]

    def is_loaded(self, settings: Settings) -> bool:
        place = self._places.get(settings)
        return place is not None and place.child is not None and place.child.is_alive

    async def _loaded(self, place: Place, settings: Settings) -> Child:
        if place.child is not None:
            if place.child.is_alive:
                return place.child
            await _take(place).stop()  # it died: what it left is cleared away
        await self._room()
        self._make_directory()
        child = Child(
            msgspec.structs.replace(settings, socket=str(self._directory / f"{next(self._numbers)}.sock")), place.name
        )
        place.child = child  # counted from now on
        try:
            await child.start()
        except BaseException:
            place.child = None
            raise
        return child

    async def _room(self) -> None:
        while len(loaded := [place for place in self._places.values() if place.child]) >= self._max_children:
            self._freed.clear()
            if idle := next((place for place in loaded if place.users == 0), None):
                await _take(idle).stop()
            else:
                await self._freed.wait()

    def _unload_soon(self, place: Place) -> None:
        if place.users:
            return
        self._places = {settings: other for settings, other in self._places.items() if other is not place}
        if place.child is not None:
            task = asyncio.get_running_loop().create_task(_take(place).stop())
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)

    def _make_directory(self) -> None:
        """Once: what a server before us left there is dead, because one server owns the data directory."""
        if self._has_directory:
            return
        if len(os.fsencode(self._directory / "99999.sock")) > MAX_SOCKET_BYTES:
            self._directory = Path(tempfile.mkdtemp(prefix="kedge-"))  # nobody else can open it either
        else:
            self._make_beside_the_server()
        self._has_directory = True

    def _make_beside_the_server(self) -> None:
        try:
            make_private_dir(str(self._directory.parent))
            shutil.rmtree(self._directory, ignore_errors=True)
            make_private_dir(str(self._directory))
        except AddressError as error:
            raise ConfigError("bad_config", str(error)) from error


def _take(place: Place) -> Child:
    """The child of a place, which has none from now on."""
    child, place.child = place.child, None
    assert child is not None
    return child
