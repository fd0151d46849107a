"""Sandboxed commands are found and ended like any other: cancels, jobs, shutdowns, a killed server (P6, P13)."""

from __future__ import annotations

import asyncio
import os
import sys
import uuid
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from kedge.config.schema import SandboxConfig, SandboxMode
from kedge.tools.process.command import WorkspaceJobs
from tests.support.harness import Kedge
from tests.support.reader import LIMIT_S
from tests.support.stores import Sqlite
from tests.tools.sandbox.cells import BACKENDS
from tests.tools.test_killed_servers import killed_at, running, wait_for_end
from tests.tools.turns import BashTurn

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="there is a sandbox only on Linux")


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> SandboxMode:
    return request.param


@pytest.fixture
async def jobs() -> AsyncGenerator[WorkspaceJobs]:
    jobs = WorkspaceJobs()
    yield jobs
    await jobs.close()


@pytest.fixture
async def kedge(tmp_path: Path, jobs: WorkspaceJobs, backend: SandboxMode) -> AsyncGenerator[Kedge]:
    async with Kedge(Sqlite(), tmp_path, term_s=0.3, kill_s=LIMIT_S) as kedge:
        kedge.turns["prompt"] = BashTurn(jobs, tmp_path / "scratch", SandboxConfig(mode=backend))
        os.mkfifo(tmp_path / "workspace" / "told")
        yield kedge


async def heard(kedge: Kedge) -> None:
    async with asyncio.timeout(LIMIT_S):
        await asyncio.to_thread((kedge.data.parent / "workspace" / "told").read_text)


def stubborn(token: str) -> str:
    """One that left its group and does not listen, and the command itself."""
    return f"setsid bash -c 'trap \"\" TERM; echo up > told; exec -a {token} sleep 300' & exec -a {token} sleep 300"


async def test_a_cancel_ends_all_processes(kedge: Kedge) -> None:
    token = uuid.uuid4().hex
    session_id = await kedge.session()
    await kedge.send(session_id, stubborn(token), "r")
    await heard(kedge)
    assert running(token)
    await kedge.cancel(session_id)
    assert (await kedge.end("r")).cancelled
    assert running(token) == []
    assert await kedge.store.left_processes() == []


async def test_a_job_outlives_its_run_and_is_ended_by_name(kedge: Kedge, jobs: WorkspaceJobs) -> None:
    token = uuid.uuid4().hex
    await kedge.send(await kedge.session(), f"&echo up > told; exec -a {token} sleep 300", "r")
    await heard(kedge)
    assert not (await kedge.end("r")).error
    assert running(token)
    [job] = jobs.of(kedge.workspace_id).list()
    await jobs.of(kedge.workspace_id).kill(job.id)
    assert running(token) == []
    assert await kedge.store.left_processes() == []


async def test_a_background_process_becomes_a_job_and_ends_with_the_server(kedge: Kedge) -> None:
    token = uuid.uuid4().hex
    session_id = await kedge.session()
    await kedge.send(session_id, f"(exec -a {token} sleep 300) & echo left", "r")
    assert not (await kedge.end("r")).error
    [result] = await kedge.results(session_id)
    assert "job_id" in (result.metadata or {})
    assert running(token)
    await kedge.shutdown(grace_s=0)
    assert running(token) == []


async def test_the_next_server_ends_it_after_a_kill(
    backend: SandboxMode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEST_SANDBOX", backend)
    token = uuid.uuid4().hex
    script = f"setsid bash -c 'trap \"\" TERM; exec -a {token} sleep 300' & exec -a {token} sleep 300"
    await asyncio.to_thread(killed_at, "command.released", tmp_path, script)
    async with Kedge(Sqlite(), tmp_path, term_s=0.3, kill_s=LIMIT_S):
        for pid in running(token):  # at most one that waited in vain, and is about to end
            await asyncio.to_thread(wait_for_end, pid)
    assert running(token) == []


async def test_a_command_never_starts_before_it_is_recorded(
    backend: SandboxMode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEST_SANDBOX", backend)
    token = uuid.uuid4().hex
    await asyncio.to_thread(killed_at, "record_process.begin", tmp_path, f"touch begun; exec -a {token} sleep 300")
    for pid in running(token):
        await asyncio.to_thread(wait_for_end, pid)
    assert not (tmp_path / "workspace" / "begun").exists()
