"""The configuration of a server: never stale, never fatal; changes are told as they happen, with real files."""

from __future__ import annotations

import asyncio
import gc
import shutil
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from kedge.config.configs import Configs
from kedge.config.errors import BadConfig
from kedge.config.watch import find_watch_points
from kedge.protocol.errors import StoreUnavailable
from tests.config.home import Home

LIMIT_S = 20.0
needs_inotify = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere changes are noticed on use")


class Watched:
    """A server's configuration, with somebody who follows its workspaces."""

    def __init__(self, home: Home) -> None:
        env = {"HOME": home.env["HOME"], "XDG_CONFIG_DIRS": str(home.system.parents[1])}
        self.configs = Configs(env)
        self.told: asyncio.Queue[str] = asyncio.Queue()
        self.configs.set_listener(self.told.put)
        self._home = home
        self._ends: list[tuple[asyncio.Event, asyncio.Task[None]]] = []

    async def follow(self, workspace_id: str = "w1", directory: Path | None = None) -> None:
        """Returns when the kernel was asked, and what the files say is known."""
        end = asyncio.Event()
        where = str(directory or self._home.workspace)
        self._ends.append((end, asyncio.create_task(self._read(workspace_id, where, end))))
        await asyncio.sleep(0)
        await self.settled()

    async def _read(self, workspace_id: str, directory: str, end: asyncio.Event) -> None:
        with self.configs.watch(workspace_id, directory):
            await end.wait()

    async def settled(self) -> None:
        """Until what was noticed was looked at."""
        looking = self.configs._checking
        assert looking is not None
        await asyncio.wait_for(asyncio.shield(looking), LIMIT_S)

    async def next(self) -> str:
        return await asyncio.wait_for(self.told.get(), LIMIT_S)

    async def leave(self) -> None:
        for end, _ in self._ends:
            end.set()
        await asyncio.gather(*(task for _, task in self._ends))
        self._ends.clear()
        await self.settled()

    async def close(self) -> None:
        for _, task in self._ends:
            task.cancel()
        await asyncio.gather(*(task for _, task in self._ends), return_exceptions=True)
        await self.configs.close()


@asynccontextmanager
async def watching(home: Home) -> AsyncGenerator[Watched]:
    watched = Watched(home)
    try:
        yield watched
    finally:
        await watched.close()


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def replace(file: Path, text: str) -> None:
    """As most editors do."""
    other = file.with_name(f"{file.name}~")
    other.write_text(text)
    other.replace(file)


async def test_a_broken_file_fails_who_asks_and_is_forgotten_when_mended(home: Home) -> None:
    async with watching(home) as watched:
        home.write(home.user, "model = \n")
        for _ in range(2):
            with pytest.raises(BadConfig, match=r"config\.toml:1: is not valid TOML"):
                await watched.configs.load("w1", str(home.workspace))
        home.write(home.user, "model = 'a/b'\n")
        loaded = await watched.configs.load("w1", str(home.workspace), home.env)
        assert loaded.config.model == "a/b"


async def test_a_change_is_told_on_use_also_to_who_does_not_watch(home: Home) -> None:
    async with watching(home) as watched:
        await watched.configs.load("w1", str(home.workspace))
        home.write(home.inner, "model = 'a/b'\n")
        assert watched.told.empty()
        await watched.configs.load("w1", str(home.workspace))
        assert watched.told.get_nowait() == "w1"
        await watched.configs.load("w1", str(home.workspace))
        assert watched.told.empty()


async def test_the_callers_variables_count_and_not_the_servers(home: Home) -> None:
    async with watching(home) as watched:
        home.write(home.user, "small_model = 'a/${NAME:-none}'\n")
        config = (await watched.configs.load("w1", str(home.workspace), {"NAME": "x", "KEDGE_MODEL": "a/m"})).config
        assert (config.model, config.small_model) == ("a/m", "a/x")
        config = (await watched.configs.load("w1", str(home.workspace))).config
        assert (config.model, config.small_model) == (None, "a/none")


@needs_inotify
@pytest.mark.parametrize("name", ["user", "outer", "inner", "system"])
async def test_a_file_that_comes_changes_and_goes_is_told_each_time(home: Home, name: str) -> None:
    file: Path = getattr(home, name)
    async with watching(home) as watched:
        await watched.follow()
        home.write(file, "agent.titles = true\n")  # its directory may not have been there
        assert await watched.next() == "w1"
        replace(file, "agent.titles = false\n")
        assert await watched.next() == "w1"
        file.rename(file.with_name("away"))
        assert await watched.next() == "w1"
        file.with_name("away").rename(file)
        assert await watched.next() == "w1"
        file.unlink()
        assert await watched.next() == "w1"
        file.parent.rename(file.parent.with_name("moved"))
        file.parent.with_name("moved").rename(file.parent)
        home.write(file, "agent.titles = true\n")
        assert await watched.next() == "w1"


@needs_inotify
async def test_what_says_the_same_is_no_change(home: Home) -> None:
    home.write(home.inner, "agent.titles = true\n")
    async with watching(home) as watched:
        await watched.follow()
        replace(home.inner, "agent.titles = true\n")
        (home.workspace / "other.toml").write_text("x")
        replace(home.inner, "agent.titles = false\n")
        assert await watched.next() == "w1"
        await watched.settled()
        assert watched.told.empty()


@needs_inotify
async def test_a_change_behind_links_is_told(home: Home, tmp_path: Path) -> None:
    for version in ("one", "two"):
        home.write(tmp_path / version / "kedge" / "config.toml", f"model = 'a/{version}'\n")
    config = home.user.parents[1]
    config.parent.mkdir(parents=True)
    current = tmp_path / "current"
    current.symlink_to("one")
    config.symlink_to(current)  # of several, some relative
    async with watching(home) as watched:
        await watched.follow()
        replace(tmp_path / "one" / "kedge" / "config.toml", "model = 'a/one-2'\n")
        assert await watched.next() == "w1"
        current.unlink()
        current.symlink_to("two")
        assert await watched.next() == "w1"
        loaded = await watched.configs.load("w1", str(home.workspace))
        assert loaded.config.model == "a/two"
        replace(tmp_path / "two" / "kedge" / "config.toml", "model = 'a/two-2'\n")
        assert await watched.next() == "w1"


@needs_inotify
async def test_a_workspace_that_is_removed_and_made_again_is_watched_again(home: Home) -> None:
    home.write(home.inner, "model = 'a/b'\n")
    async with watching(home) as watched:
        await watched.follow()
        shutil.rmtree(home.workspace)
        assert await watched.next() == "w1"
        home.workspace.mkdir()
        home.write(home.inner, "model = 'a/c'\n")
        assert await watched.next() == "w1"


@needs_inotify
async def test_each_change_is_told_to_those_it_concerns(home: Home) -> None:
    other = home.repository.parent / "other"
    other.mkdir()
    async with watching(home) as watched:
        await watched.follow("w1")
        await watched.follow("w2", other)
        home.write(home.inner, "model = 'a/b'\n")
        assert await watched.next() == "w1"
        home.write(other / "kedge.toml", "model = 'a/b'\n")
        assert await watched.next() == "w2"
        home.write(home.user, "model = 'a/b'\n")
        assert {await watched.next(), await watched.next()} == {"w1", "w2"}


@needs_inotify
async def test_nothing_is_left_open_when_nobody_follows(home: Home) -> None:
    async with watching(home) as watched:
        await watched.configs.load("w1", str(home.workspace))
        gc.collect()  # files that earlier tests left to the collector
        before = open_files()
        for _ in range(20):
            await watched.follow()
            await watched.follow()
            home.write(home.inner, "model = 'a/b'\n")
            assert await watched.next() == "w1"
            home.inner.unlink()
            assert await watched.next() == "w1"
            assert open_files() == before + 1
            await watched.leave()
            assert open_files() == before
    async with watching(home) as watched:
        await watched.follow()
    assert open_files() == before


@needs_inotify
async def test_a_kernel_that_watches_nothing_more_costs_only_the_promptness(
    home: Home, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from kedge.config import watch

    def full(self: watch.Inotify, directory: Path) -> None:
        raise OSError(28, "No space left on device", str(directory))

    monkeypatch.setattr(watch.Inotify, "watch", full)
    gc.collect()
    before = open_files()
    async with watching(home) as watched:
        await watched.follow()
        assert open_files() == before
        assert "noticed on use only" in caplog.text
        home.write(home.inner, "model = 'a/b'\n")
        await watched.configs.load("w1", str(home.workspace))
        assert await watched.next() == "w1"


async def test_a_turn_that_uses_a_changed_file_lets_it_be_told_where_nothing_is_watched(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kedge.config import watch

    monkeypatch.setattr(watch, "is_available", lambda: False)
    async with watching(home) as watched:
        await watched.follow()
        home.write(home.inner, "model = 'a/b'\n")
        config = await asyncio.to_thread(watched.configs.load_in_thread, home.workspace, home.env)
        assert config.model == "a/b"
        assert await watched.next() == "w1"


async def test_a_store_that_cannot_tell_harms_nobody(home: Home) -> None:
    async def fail(workspace_id: str) -> None:
        raise StoreUnavailable(workspace_id)

    async with watching(home) as watched:
        watched.configs.set_listener(fail)
        await watched.configs.load("w1", str(home.workspace))
        home.write(home.inner, "model = 'a/b'\n")
        assert (await watched.configs.load("w1", str(home.workspace))).config.model == "a/b"


@pytest.mark.parametrize("scope", ["global", "workspace"])
async def test_what_is_set_is_told_once_and_holds_at_once(home: Home, scope: str) -> None:
    async with watching(home) as watched:
        if sys.platform == "linux":
            await watched.follow()
        await watched.configs.set("w1", str(home.workspace), scope, "model", "a/b")  # pyright: ignore[reportArgumentType]
        assert (await watched.configs.load("w1", str(home.workspace))).config.model == "a/b"
        assert await watched.next() == "w1"
        await watched.configs.remove("w1", str(home.workspace), scope, "model")  # pyright: ignore[reportArgumentType]
        assert (await watched.configs.load("w1", str(home.workspace))).config.model is None
        assert await watched.next() == "w1"
        assert watched.told.empty()


def test_the_places_to_watch_are_found(tmp_path: Path) -> None:
    root = tmp_path.resolve()
    a = root / "a"

    def found() -> set[tuple[str, str]]:
        return {(str(directory.relative_to(root)), name) for directory, name in find_watch_points(a / "kedge.toml")}

    assert found() == {(".", "a")}  # it may come
    a.mkdir()
    assert found() == {("a", "kedge.toml")}
    a.rmdir()
    a.symlink_to("nowhere")
    assert found() == {(".", "a"), (".", "nowhere")}
    a.unlink()
    a.symlink_to("a")
    assert found() == {(".", "a")}
    a.unlink()
    a.write_text("")
    assert found() == {(".", "a")}
