"""The connection of the interface: it never gives up, misses nothing and doubles nothing."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable
from pathlib import Path

import pytest

from kedge.client import AsyncClient
from kedge.protocol.runs import Receipt
from kedge.tui.api import Api
from kedge.tui.state.block_builder import build_blocks
from kedge.tui.state.blocks import TextBlock
from kedge.tui.state.workspace import WorkspaceState
from kedge.tui.sync import Sync
from tests.e2e.home import Home, answer_of, asking

LIMIT_S = 45.0


class Watch:
    """A link, and waiting for what it shows."""

    def __init__(self, home: Home, directory: Path) -> None:
        self.workspace = WorkspaceState()
        self._changed = asyncio.Event()
        self.sync = Sync(self.workspace, lambda: self._connect(home, directory), self._changed.set)
        self.api = Api(self.sync.ready)
        self.session_id = ""

    async def _connect(self, home: Home, directory: Path) -> AsyncClient:
        return await AsyncClient.connect(str(directory), host=f"unix://{home.socket_path}", name="watch")

    async def until(self, is_so: Callable[[], bool]) -> None:
        async with asyncio.timeout(LIMIT_S):
            while not is_so():
                self._changed.clear()
                await self._changed.wait()

    async def open(self) -> str:
        self.session_id = (await self.api.create_session()).id
        await self.sync.open_session(self.session_id)
        return self.session_id

    async def submit(self, prompt: str, run_id: str) -> Receipt:
        return await self.api.submit(self.session_id, prompt, run_id=run_id)

    @property
    def text(self) -> str:
        return "".join(
            block.text
            for block in build_blocks(self.workspace.open_session(self.session_id))
            if isinstance(block, TextBlock)
        )


@contextlib.asynccontextmanager
async def watching(home: Home, directory: Path) -> AsyncGenerator[Watch]:
    watch = Watch(home, directory)
    task = asyncio.create_task(watch.sync.run())
    try:
        yield watch
    finally:
        task.cancel()
        await asyncio.wait({task})


@pytest.fixture
def calm_environment(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a prompt brings along is this process's: it must know the model, too."""
    for name, value in home.env.items():
        monkeypatch.setenv(name, value)


@pytest.mark.usefixtures("calm_environment")
class TestLink:
    async def test_a_server_that_is_killed_and_comes_back_loses_and_doubles_no_word(
        self, home: Home, tmp_path: Path
    ) -> None:
        server = await asyncio.to_thread(home.serve)
        async with watching(home, tmp_path) as watch:
            await watch.open()
            plan = {"chunks": 50, "gate": "half", "gate_after": 25, "text": "the end"}
            await watch.submit(asking(**plan), "r")
            await watch.until(lambda: "w20 " in watch.text)
            await asyncio.to_thread(server.kill)
            await watch.until(lambda: watch.sync.state == "lost")
            home.models.release("half")
            server = await asyncio.to_thread(home.serve)
            await watch.until(lambda: "r" in watch.workspace.open_session(watch.session_id).ends)
            session = watch.workspace.open_session(watch.session_id)
            answers = [block for block in build_blocks(session) if isinstance(block, TextBlock)]
            assert answers[-1].text == answer_of(**plan)
            assert [block.is_interrupted for block in answers] == [True, False]
            assert not session.is_busy
        assert await asyncio.to_thread(server.stop) == 0

    async def test_a_session_opened_in_the_middle_of_an_answer_has_all_of_it(self, home: Home, tmp_path: Path) -> None:
        server = await asyncio.to_thread(home.serve)
        plan = {"chunks": 40, "gate": "later", "gate_after": 20, "text": "done"}
        async with watching(home, tmp_path) as first:
            await first.open()
            await first.submit(asking(**plan), "r")
            await first.until(lambda: "w15 " in first.text)
            async with watching(home, tmp_path) as second:
                second.session_id = first.session_id
                await second.sync.open_session(first.session_id)
                await second.until(lambda: "w15 " in second.text)
                home.models.release("later")
                for watch in (first, second):
                    await watch.until(lambda watch=watch: "r" in watch.workspace.open_session(watch.session_id).ends)
                assert first.text == second.text == answer_of(**plan)
        assert await asyncio.to_thread(server.stop) == 0

    async def test_a_data_directory_that_was_emptied_is_joined_anew(self, home: Home, tmp_path: Path) -> None:
        server = await asyncio.to_thread(home.serve)
        async with watching(home, tmp_path) as watch:
            await watch.open()
            await asyncio.to_thread(server.kill)
            for file in home.data_dir.glob("*.db*"):
                file.unlink()
            server = await asyncio.to_thread(home.serve)
            await watch.until(lambda: watch.sync.state == "refused")
            session_id = await watch.open()  # waits for the way in
            await watch.until(lambda: session_id in watch.workspace.sessions)
            await watch.submit(asking(text="AGAIN"), "r")
            await watch.until(lambda: watch.text == "AGAIN")
        assert await asyncio.to_thread(server.stop) == 0

    async def test_what_another_client_does_shows_at_once(self, home: Home, tmp_path: Path) -> None:
        server = await asyncio.to_thread(home.serve)
        async with watching(home, tmp_path) as one, watching(home, tmp_path) as other:
            session_id = await one.open()
            await other.until(lambda: session_id in other.workspace.sessions)
            await one.api.rename(session_id, "renamed")
            await other.until(lambda: other.workspace.sessions[session_id].title == "renamed")
            await one.submit(asking(gate="wait"), "r")
            await other.until(lambda: "r" in other.workspace.runs)
            await other.api.cancel(session_id)
            await one.until(lambda: "r" in one.workspace.open_session(session_id).ends)
            assert one.workspace.open_session(session_id).ends["r"].cancelled
            await other.api.delete(session_id)
            await one.until(lambda: session_id not in one.workspace.sessions)
        assert await asyncio.to_thread(server.stop) == 0
