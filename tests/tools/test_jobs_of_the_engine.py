"""Jobs over the real engine: they outlive their run and end with their workspace or the server (P6, P13, P15)."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from kedge.tools.process.command import WorkspaceJobs
from tests.support.harness import Kedge
from tests.support.processes import is_alive
from tests.support.reader import LIMIT_S
from tests.support.stores import Sqlite
from tests.tools.turns import BashTurn


@pytest.fixture
async def jobs() -> AsyncGenerator[WorkspaceJobs]:
    jobs = WorkspaceJobs()
    yield jobs
    await jobs.close()


@pytest.fixture
async def kedge(tmp_path: Path, jobs: WorkspaceJobs) -> AsyncGenerator[Kedge]:
    async with Kedge(Sqlite(), tmp_path) as kedge:
        kedge.turns["prompt"] = BashTurn(jobs, tmp_path / "scratch")
        yield kedge


def pid_in(kedge: Kedge, name: str) -> int:
    return int((kedge.data.parent / "workspace" / name).read_text())


async def begin(kedge: Kedge, run_id: str, *script: str) -> str:
    session_id = await kedge.session()
    await kedge.send(session_id, "\n".join(script), run_id)
    return session_id


# A pipe, so that the job has written its number before the run goes on.
JOB = "&echo $$ > pid; echo up > told; exec sleep 300"
TOLD = "read -r x < told"


async def with_job(kedge: Kedge) -> int:
    os.mkfifo(kedge.data.parent / "workspace" / "told")
    await begin(kedge, "r", JOB, TOLD)
    assert not (await kedge.end("r")).error
    return pid_in(kedge, "pid")


async def test_a_job_outlives_its_run_and_the_cancel_of_another(kedge: Kedge, jobs: WorkspaceJobs) -> None:
    pid = await with_job(kedge)
    session_id = await begin(kedge, "other", "echo $$ > other; echo up > told; sleep 300")
    await asyncio.to_thread((kedge.data.parent / "workspace" / "told").read_text)
    await kedge.cancel(session_id)
    assert (await kedge.end("other")).cancelled
    assert not is_alive(pid_in(kedge, "other"))
    assert is_alive(pid)
    async with asyncio.timeout(LIMIT_S):
        while kedge.engine.actors:  # noqa: ASYNC110 - nothing announces that the last one is gone
            await asyncio.sleep(0)
    assert not kedge.engine.is_idle, "a server with a job at work does not leave by itself"
    [job] = jobs.of(kedge.workspace_id).list()
    await jobs.of(kedge.workspace_id).kill(job.id)
    assert not is_alive(pid)
    assert kedge.engine.is_idle
    assert await kedge.store.left_processes() == []


async def test_a_job_ends_with_the_server(kedge: Kedge) -> None:
    pid = await with_job(kedge)
    async with asyncio.timeout(LIMIT_S):
        await kedge.engine.stop(grace_s=0)
    assert not is_alive(pid)


async def test_a_job_ends_with_its_workspace(kedge: Kedge, jobs: WorkspaceJobs) -> None:
    pid = await with_job(kedge)
    [job] = jobs.of(kedge.workspace_id).list()
    other = kedge.data.parent / "other"
    other.mkdir()
    await kedge.engine.open_workspace(other)
    await kedge.engine.delete_workspace(kedge.workspace_id)
    assert not is_alive(pid)
    async with asyncio.timeout(LIMIT_S):
        await job.command.finished.wait()
    kedge.workspace_id = (await kedge.engine.open_workspace(kedge.data.parent / "workspace")).id


async def test_a_job_of_a_crashed_server_is_ended_by_the_next(kedge: Kedge, jobs: WorkspaceJobs) -> None:
    pid = await with_job(kedge)
    await jobs.close()
    await kedge.crash()
    assert is_alive(pid)
    await kedge.start()
    assert not is_alive(pid)


async def test_a_cancel_ends_a_command_with_the_children_that_left_it(kedge: Kedge) -> None:
    os.mkfifo(kedge.data.parent / "workspace" / "told")
    deaf = "setsid bash -c 'trap \"\" TERM; echo $$ > pid; echo up > told; while :; do sleep 0.2; done'"
    session_id = await begin(kedge, "r", f"({deaf} >/dev/null 2>&1 &); echo begun; sleep 300")
    await asyncio.to_thread((kedge.data.parent / "workspace" / "told").read_text)
    await kedge.seen(lambda event: event.type == "message_delta")
    assert is_alive(pid_in(kedge, "pid"))
    await kedge.cancel(session_id)
    assert (await kedge.end("r")).cancelled
    assert not is_alive(pid_in(kedge, "pid"))
    [result] = await kedge.results(session_id)
    assert result.content.startswith("begun\n")


async def test_commands_that_ended_leave_no_record(kedge: Kedge) -> None:
    await begin(kedge, "r", *["true"] * 30)
    assert not (await kedge.end("r")).error
    assert await kedge.store.left_processes() == []
