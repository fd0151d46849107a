"""`Configs`: the configuration for a server. Never stale, never fatal, and a change is told to who follows a workspace.

Files are looked at on each use. While somebody follows a workspace, the kernel says when to look (Linux); elsewhere a
change is noticed, and told, on the next use.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from kedge.protocol.errors import KedgeError

if TYPE_CHECKING:
    from kedge.config.change import Scope
    from kedge.config.load import Loaded, Loader
    from kedge.config.schema import Config
    from kedge.config.watch import Happened, Inotify, Point

log = logging.getLogger(__name__)

T = TypeVar("T")
Tell = Callable[[str], Awaitable[None]]
State = tuple[tuple[str, bytes], ...]


async def _tell_nobody(workspace_id: str) -> None:
    del workspace_id


class Configs:
    """Where files are is said by `environ`, the server's own; it also serves callers that came without variables."""

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        self._environ = environ
        self._tell: Tell = _tell_nobody
        self._loader: Loader | None = None
        self._directories: dict[str, str] = {}  # of the workspaces that were asked for
        self._states: dict[str, State] = {}  # and what their files said
        self._followers: Counter[str] = Counter()
        self._inotify: Inotify | None = None
        self._points: set[Point] = set()
        self._can_watch = True
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lock = asyncio.Lock()
        self._is_dirty = False
        self._is_closed = False
        self._looking: asyncio.Task[None] | None = None

    def tell_with(self, tell: Tell) -> None:
        """Let changes be told: `tell` gets the id of each workspace whose files changed."""
        self._tell = tell

    async def of(self, workspace_id: str, directory: str, env: Mapping[str, str] | None = None) -> Loaded:
        """What holds there now. Raises `BadConfig` until the files are mended, and then works again by itself."""
        variables = self._environ if env is None else env
        return await self._use(workspace_id, directory, lambda loader, path: loader.load(path, variables))

    def configured(self, directory: Path, env: Mapping[str, str]) -> Config:
        """The same for a turn, which works in a thread of its own."""
        config = self._made_loader().load(directory, env).config
        if self._loop is not None and self._inotify is None:
            self._loop.call_soon_threadsafe(self._look_soon)
        return config

    async def set(self, workspace_id: str, directory: str, scope: Scope, key: str, value: object) -> None:
        """Write a key into one of the two files; refused with `CannotSet`."""

        def write(loader: Loader, path: Path) -> None:
            from kedge.config import change

            change.set_in(change.file_of(scope, loader.places, path), key, value)

        await self._use(workspace_id, directory, write)
        await self._look(workspace_id)

    async def remove(self, workspace_id: str, directory: str, scope: Scope, key: str) -> None:
        def write(loader: Loader, path: Path) -> None:
            from kedge.config import change

            change.remove_in(change.file_of(scope, loader.places, path), key)

        await self._use(workspace_id, directory, write)
        await self._look(workspace_id)

    async def followed(self, workspace_id: str, directory: str, chunks: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
        """The same stream; while it is read, changes are told as they happen."""
        self._directories[workspace_id] = directory
        self._followers[workspace_id] += 1
        self._loop = asyncio.get_running_loop()
        self._look_soon()
        try:
            async with aclosing(chunks):
                async for chunk in chunks:
                    yield chunk
        finally:
            self._followers[workspace_id] -= 1
            if not self._followers[workspace_id]:
                del self._followers[workspace_id]
                self._look_soon()  # which lets go of what nobody follows

    def forget(self, workspace_id: str) -> None:
        """The workspace is gone."""
        self._directories.pop(workspace_id, None)
        self._states.pop(workspace_id, None)

    async def close(self) -> None:
        self._is_closed, self._loop = True, None
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)
        self._let_go()

    async def _use(self, workspace_id: str, directory: str, work: Callable[[Loader, Path], T]) -> T:
        """Do `work` in a thread, for disks may be slow. If the files changed since the last time, that is told."""
        self._directories[workspace_id] = directory

        def look_and_work() -> tuple[State, T | KedgeError]:
            loader, path = self._made_loader(), Path(directory)
            state = loader.state(path)
            try:
                return state, work(loader, path)
            except KedgeError as error:
                return state, error

        async with self._lock:  # so that a state is compared before the next is taken
            state, result = await asyncio.to_thread(look_and_work)
            is_changed = self._states.setdefault(workspace_id, state) != state
            self._states[workspace_id] = state
        if is_changed:
            await self._tell_of(workspace_id)
        if isinstance(result, KedgeError):
            raise result
        return result

    async def _tell_of(self, workspace_id: str) -> None:
        try:
            await self._tell(workspace_id)
        except KedgeError as error:  # a workspace that was deleted meanwhile, or a full disk: clients ask again anyway
            log.warning("a change of the configuration could not be told: %s", error.message)

    def _made_loader(self) -> Loader:
        """Made on first use, in a thread: a server that starts has no time for it."""
        if self._loader is None:
            from kedge.config.load import Loader
            from kedge.config.paths import Places

            self._loader = Loader(Places.of(self._environ))
        return self._loader

    async def _look(self, *also: str) -> None:
        for workspace_id in {*self._followers, *also} & self._directories.keys():
            await self._use(workspace_id, self._directories[workspace_id], lambda _, __: None)

    # watching

    async def _watch(self) -> None:
        """Watch what the followed workspaces need, and nothing else."""
        from kedge.config import watch

        if not self._can_watch or not watch.is_available():
            return
        followed = [Path(self._directories[each]) for each in self._followers if each in self._directories]
        self._points = await asyncio.to_thread(self._points_of, followed)
        wanted = {directory for directory, _ in self._points}
        if not wanted:
            self._let_go()
            return
        try:
            if self._inotify is None:
                self._inotify = watch.Inotify(self._happened)
            for directory in self._inotify.watched - wanted:
                self._inotify.unwatch(directory)
            for directory in wanted - self._inotify.watched:
                self._watch_directory(self._inotify, directory)
        except OSError as error:
            log.warning("changes of the configuration are noticed on use only: %s", error)
            self._can_watch = False
            self._let_go()

    def _points_of(self, directories: list[Path]) -> set[Point]:
        from kedge.config.watch import points

        loader = self._made_loader()
        paths = {path for directory in directories for path in loader.candidates(directory)}
        return {point for path in paths for point in points(path)}

    def _watch_directory(self, inotify: Inotify, directory: Path) -> None:
        try:
            inotify.watch(directory)
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            pass  # it went just now, which another watch tells, or is not ours to see

    def _happened(self, what: Happened) -> None:
        if what.directory is None or not what.name or (what.directory, what.name) in self._points:
            self._look_soon()

    def _look_soon(self) -> None:
        """What comes in quick succession is looked at together, by one task that this object owns."""
        self._is_dirty = True
        if self._is_closed:
            return
        if self._looking is None or self._looking.done():
            self._looking = asyncio.get_running_loop().create_task(self._look_while_dirty())

    async def _look_while_dirty(self) -> None:
        while self._is_dirty:
            self._is_dirty = False
            try:
                await self._watch()  # first: what happens from here on is told again
                await self._look()
            except Exception:  # the boundary: whatever is wrong with somebody's files, the server goes on
                log.exception("the configuration could not be looked at")

    def _let_go(self) -> None:
        if self._inotify is not None:
            self._inotify.close()
            self._inotify = None
        self._points = set()
