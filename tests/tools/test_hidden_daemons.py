"""A daemon that left its group, session and parents keeps no port: after a cancel, a shutdown, a kill (P6, P13).

In a control group it is found even if it wiped its environment; without one, by the mark that it kept there.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import AsyncGenerator, Generator
from pathlib import Path
from typing import NamedTuple

import pytest

from kedge.engine.processes import cgroups
from kedge.tools.process.command import WorkspaceJobs
from tests.support.cgroups import needs_cgroups, switch_off
from tests.support.harness import Kedge
from tests.support.processes import is_alive
from tests.support.reader import LIMIT_S
from tests.support.stores import Sqlite
from tests.tools.test_killed_servers import killed_at
from tests.tools.turns import BashTurn

HIDDEN = Path(__file__).parent / "hidden.py"

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="macOS shows no environment of others")


class Daemon(NamedTuple):
    pid: int
    port: int

    @property
    def is_gone(self) -> bool:
        try:
            socket.create_server(("127.0.0.1", self.port)).close()
        except OSError:
            return False
        return not is_alive(self.pid)


class Start(NamedTuple):
    """A command that starts the daemon, and how it is heard of."""

    command: str
    told: Path
    found: list[Daemon]

    async def heard(self) -> Daemon:
        async with asyncio.timeout(LIMIT_S):
            pid, port = map(int, (await asyncio.to_thread(self.told.read_text)).split())
        self.found.append(Daemon(pid, port))
        assert not self.found[0].is_gone
        return self.found[0]


@pytest.fixture(params=[pytest.param("enclosed", marks=needs_cgroups), "marked"])
def start(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[Start]:
    told = tmp_path / "told"
    os.mkfifo(told)
    command = f"{sys.executable} {HIDDEN} {told}"
    if request.param == "marked":
        switch_off(monkeypatch)
        monkeypatch.setenv("TEST_NO_CGROUPS", "1")
        command += " keep"
    start = Start(command, told, [])
    yield start
    for daemon in start.found:
        with contextlib.suppress(ProcessLookupError):
            os.kill(daemon.pid, signal.SIGKILL)


@pytest.fixture
async def kedge(tmp_path: Path, start: Start) -> AsyncGenerator[Kedge]:
    jobs = WorkspaceJobs()
    async with Kedge(Sqlite(), tmp_path, kill_s=LIMIT_S) as kedge:
        kedge.turns["prompt"] = BashTurn(jobs, tmp_path / "scratch")
        yield kedge
    await jobs.close()


async def test_a_cancel_ends_it(kedge: Kedge, start: Start) -> None:
    session_id = await kedge.session()
    await kedge.send(session_id, f"{start.command}; sleep 300", "r")
    daemon = await start.heard()
    await kedge.cancel(session_id)
    assert (await kedge.end("r")).cancelled
    assert daemon.is_gone


async def test_one_that_a_command_leaves_behind_is_a_job_and_ends_with_the_server(kedge: Kedge, start: Start) -> None:
    session_id = await kedge.session()
    # It says its number before its command ends: the pipe is only read when it is open at both ends.
    await kedge.send(session_id, f"{start.command}; exec 3<{start.told}; cat <&3 > heard", "r")
    assert not (await kedge.end("r")).error
    [result] = await kedge.results(session_id)
    pid, port = map(int, (kedge.data.parent / "workspace" / "heard").read_text().split())
    daemon = Daemon(pid, port)
    start.found.append(daemon)
    assert f"(process {pid})" in result.content, "the model is told who it left"
    assert not daemon.is_gone
    await kedge.shutdown(grace_s=0)
    assert daemon.is_gone


async def test_a_shutdown_ends_it_with_its_run(kedge: Kedge, start: Start) -> None:
    await kedge.send(await kedge.session(), f"{start.command}; sleep 300", "r")
    daemon = await start.heard()
    await kedge.shutdown(grace_s=0)
    assert daemon.is_gone


async def test_the_next_server_ends_it_after_a_kill(start: Start, tmp_path: Path) -> None:
    await asyncio.to_thread(killed_at, "command.released", tmp_path, start.command)
    daemon = await start.heard()
    async with Kedge(Sqlite(), tmp_path, kill_s=LIMIT_S):
        assert daemon.is_gone


async def test_no_group_is_left_by_commands_however_they_end(kedge: Kedge, start: Start) -> None:
    before = _groups()
    session_id = await kedge.session()
    await kedge.send(session_id, "true\nexit 3\n&sleep 300", "ended")
    await kedge.end("ended")
    await kedge.send(session_id, f"{start.command}; sleep 300", "r")
    await start.heard()
    await kedge.cancel(session_id)
    await kedge.end("r")
    await kedge.shutdown(grace_s=0)
    assert _groups() <= before


def _groups() -> set[str]:
    """Those of this server: others may come and go beside it."""
    return {str(path) for path in (*cgroups._groups.values(), *cgroups._to_remove) if path.exists()}
