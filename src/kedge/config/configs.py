"""`Configs`: the configuration as a server uses it, loaded for each workspace on demand.

Files are checked on each use, so that no value is stale; an invalid file fails the caller, not the server. While a
client follows a workspace, inotify reports changes at once (Linux); elsewhere they are noticed on the next use.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import Counter
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from kedge.protocol.errors import KedgeError

if TYPE_CHECKING:
    from kedge.config.change import Scope
    from kedge.config.load import Loaded, Loader
    from kedge.config.schema import Config
    from kedge.config.watch import DirectoryEvent, Inotify, WatchPoint

log = logging.getLogger(__name__)

T = TypeVar("T")
Listener = Callable[[str], Awaitable[None]]
State = tuple[tuple[str, bytes], ...]


async def _ignore_change(workspace_id: str) -> None:
    del workspace_id


class Configs:
    """`environ` is the server's environment: it says where files are, and serves callers that send no variables."""

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        self._environ = environ
        self._listener: Listener = _ignore_change
        self._loader: Loader | None = None
        self._directories: dict[str, str] = {}  # by workspace
        self._states: dict[str, State] = {}  # of its files, when they were last checked
        self._watchers: Counter[str] = Counter()
        self._inotify: Inotify | None = None
        self._watch_points: set[WatchPoint] = set()
        self._can_watch = True
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lock = asyncio.Lock()
        self._is_check_due = False
        self._is_closed = False
        self._checking: asyncio.Task[None] | None = None

    def set_listener(self, listener: Listener) -> None:
        """Call `listener` with the id of each workspace whose files changed."""
        self._listener = listener

    async def load(self, workspace_id: str, directory: str, env: Mapping[str, str] | None = None) -> Loaded:
        """Return the current configuration. Raises `BadConfig` while a file is invalid."""
        variables = self._environ if env is None else env
        return await self._use(workspace_id, directory, lambda loader, path: loader.load(path, variables))

    def load_in_thread(self, directory: Path, env: Mapping[str, str]) -> Config:
        """As `load`, for a turn, which runs in a thread of its own."""
        config = self._get_loader().load(directory, env).config
        if self._loop is not None and self._inotify is None:
            self._loop.call_soon_threadsafe(self._check_soon)
        return config

    async def set(self, workspace_id: str, directory: str, scope: Scope, key: str, value: object) -> None:
        """Write a key into one of the two files. Raises `CannotSet`."""

        def write(loader: Loader, path: Path) -> None:
            from kedge.config import change

            change.set_in_file(change.file_for_scope(scope, loader.paths, path), key, value)

        await self._use(workspace_id, directory, write)
        await self._check(workspace_id)

    async def remove(self, workspace_id: str, directory: str, scope: Scope, key: str) -> None:
        """Remove a key from one of the two files. Raises `CannotSet`."""

        def write(loader: Loader, path: Path) -> None:
            from kedge.config import change

            change.remove_from_file(change.file_for_scope(scope, loader.paths, path), key)

        await self._use(workspace_id, directory, write)
        await self._check(workspace_id)

    async def allow_always(self, workspace_id: str, directory: str, rules: Sequence[str]) -> None:
        """Add permission rules to the user's file. Raises `CannotSet` or `BadConfig`."""

        def write(loader: Loader, _: Path) -> None:
            from kedge.config import change

            change.add_rules(loader.paths.user, "allow", rules)

        await self._use(workspace_id, directory, write)
        await self._check(workspace_id)

    @contextmanager
    def watch(self, workspace_id: str, directory: str) -> Generator[None]:
        """Report changes of this workspace's files as they happen, as long as the context is open."""
        self._directories[workspace_id] = directory
        self._watchers[workspace_id] += 1
        self._loop = asyncio.get_running_loop()
        self._check_soon()
        try:
            yield
        finally:
            self._watchers[workspace_id] -= 1
            if not self._watchers[workspace_id]:
                del self._watchers[workspace_id]
                self._check_soon()  # drops the watches that nothing needs any more

    def forget(self, workspace_id: str) -> None:
        """Drop a deleted workspace."""
        self._directories.pop(workspace_id, None)
        self._states.pop(workspace_id, None)

    async def close(self) -> None:
        self._is_closed, self._loop = True, None
        if self._checking is not None:
            self._checking.cancel()
            await asyncio.gather(self._checking, return_exceptions=True)
        self._stop_watching()

    async def _use(self, workspace_id: str, directory: str, work: Callable[[Loader, Path], T]) -> T:
        """Run `work` in a thread (disks may be slow); call the listener if files changed since the last use."""
        self._directories[workspace_id] = directory

        def check_and_work() -> tuple[State, T | KedgeError]:
            loader, path = self._get_loader(), Path(directory)
            state = loader.state(path)
            try:
                return state, work(loader, path)
            except KedgeError as error:
                return state, error

        async with self._lock:  # so that a state is compared before the next is taken
            state, result = await asyncio.to_thread(check_and_work)
            is_changed = self._states.setdefault(workspace_id, state) != state
            self._states[workspace_id] = state
        if is_changed:
            await self._notify(workspace_id)
        if isinstance(result, KedgeError):
            raise result
        return result

    async def _notify(self, workspace_id: str) -> None:
        try:
            await self._listener(workspace_id)
        except KedgeError as error:  # the workspace was deleted, or the disk is full: clients read again anyway
            log.warning("a change of the configuration could not be published: %s", error.message)

    def _get_loader(self) -> Loader:
        """Created on first use, in a thread, to keep it out of the server's start."""
        if self._loader is None:
            from kedge.config.files import ConfigPaths
            from kedge.config.load import Loader

            self._loader = Loader(ConfigPaths.from_env(self._environ))
        return self._loader

    async def _check(self, *also: str) -> None:
        for workspace_id in {*self._watchers, *also} & self._directories.keys():
            await self._use(workspace_id, self._directories[workspace_id], lambda _, __: None)

    # watching

    async def _update_watches(self) -> None:
        """Watch the directories that the watched workspaces need, and no others."""
        from kedge.config import watch

        if not self._can_watch or not watch.is_available():
            return
        directories = [Path(self._directories[each]) for each in self._watchers if each in self._directories]
        self._watch_points = await asyncio.to_thread(self._find_watch_points, directories)
        wanted = {directory for directory, _ in self._watch_points}
        if not wanted:
            self._stop_watching()
            return
        try:
            if self._inotify is None:
                self._inotify = watch.Inotify(self._on_event)
            for directory in self._inotify.watched - wanted:
                self._inotify.unwatch(directory)
            for directory in wanted - self._inotify.watched:
                self._watch_directory(self._inotify, directory)
        except OSError as error:
            log.warning("changes of the configuration are noticed on use only: %s", error)
            self._can_watch = False
            self._stop_watching()

    def _find_watch_points(self, directories: list[Path]) -> set[WatchPoint]:
        from kedge.config.watch import find_watch_points

        loader = self._get_loader()
        paths = {path for directory in directories for path in loader.candidates(directory)}
        return {point for path in paths for point in find_watch_points(path)}

    def _watch_directory(self, inotify: Inotify, directory: Path) -> None:
        try:
            inotify.watch(directory)
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            pass  # removed just now, which the watch of its parent reports; or not readable by this user

    def _on_event(self, event: DirectoryEvent) -> None:
        if event.directory is None or not event.name or (event.directory, event.name) in self._watch_points:
            self._check_soon()

    def _check_soon(self) -> None:
        """Check in one background task; events that arrive meanwhile cause one more round."""
        self._is_check_due = True
        if self._is_closed:
            return
        if self._checking is None or self._checking.done():
            self._checking = asyncio.get_running_loop().create_task(self._check_while_due())

    async def _check_while_due(self) -> None:
        while self._is_check_due:
            self._is_check_due = False
            try:
                await self._update_watches()  # first, so that no change after the check is missed
                await self._check()
            except Exception:  # boundary: no file may end the server
                log.exception("the configuration could not be checked")

    def _stop_watching(self) -> None:
        if self._inotify is not None:
            self._inotify.close()
            self._inotify = None
        self._watch_points = set()
