"""Orphans of tools come to the server: seen at once, fetched when they are dead; and nobody's own child is taken."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncGenerator

import pytest

from kedge.engine.processes import process_groups, process_table, reaper
from kedge.engine.processes.reaper import Reaper
from tests.support.reader import LIMIT_S

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux hands orphans to anybody but the system")


@pytest.fixture
async def at_work() -> AsyncGenerator[Reaper]:
    one = Reaper(reap_after_s=0.05)
    assert one.start()
    yield one
    one.close()


def parent_of(pid: int) -> int | None:
    process = process_table.read_one(pid)
    return None if process is None else process.parent


async def orphan() -> tuple[int, int]:
    """The number of a process whose parent is gone, and what keeps it alive."""
    return await asyncio.to_thread(_orphan)


def _orphan() -> tuple[int, int]:
    reading, writing = os.pipe()
    script = "exec 3<&0; (setsid sh -c 'echo $$; read -r x' <&3 &)"
    with subprocess.Popen(
        ["sh", "-c", script], stdin=reading, stdout=subprocess.PIPE, start_new_session=True
    ) as parent:
        os.close(reading)
        assert parent.stdout is not None
        return int(parent.stdout.readline()), writing


async def test_an_orphan_is_ours(at_work: Reaper) -> None:
    assert reaper.is_running()
    pid, hold = await orphan()
    assert parent_of(pid) == os.getpid()
    assert pid in process_table.own_children()
    os.close(hold)


async def test_a_dead_orphan_is_fetched(at_work: Reaper) -> None:
    pid, hold = await orphan()
    os.close(hold)
    async with asyncio.timeout(LIMIT_S):
        while process_table.read_one(pid) is not None:  # noqa: ASYNC110 - nobody tells when a process is no more
            await asyncio.sleep(0.01)


async def test_children_that_somebody_waits_for_are_left_to_them(at_work: Reaper) -> None:
    """Many at once, and some dead for a while before their owner asks."""
    late = [await asyncio.to_thread(subprocess.Popen, ["sh", "-c", f"exit {code}"]) for code in (1, 3, 5)]
    children = [
        await asyncio.create_subprocess_exec("sh", "-c", f"exit {code}", start_new_session=True) for code in range(10)
    ]
    async with asyncio.timeout(LIMIT_S):
        assert await asyncio.gather(*(child.wait() for child in children)) == list(range(10))
        pid, hold = await orphan()
        os.close(hold)
        while process_table.read_one(pid) is not None:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert [child.wait() for child in late] == [1, 3, 5]


async def test_without_it_orphans_are_the_systems() -> None:
    one = Reaper()
    assert one.start()
    one.close()
    assert not reaper.is_running()
    pid, hold = await orphan()
    assert parent_of(pid) != os.getpid()
    os.close(hold)


async def test_the_end_of_a_command_costs_no_look_at_the_machine(
    at_work: Reaper, monkeypatch: pytest.MonkeyPatch
) -> None:
    child = await asyncio.create_subprocess_exec("true", start_new_session=True)
    group = process_groups.identify(child.pid)
    async with asyncio.timeout(LIMIT_S):
        await child.wait()

    def looked() -> None:
        raise AssertionError("all processes were looked at")

    monkeypatch.setattr(process_table, "read_all", looked)
    assert await process_groups.members(group) == []
