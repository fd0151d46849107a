"""The jobs of a workspace over HTTP: listed, ended, and nobody else's."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncGenerator
from pathlib import Path

import msgspec
import pytest

from kedge.protocol.sessions import Job, JobList
from kedge.tools.builtin.bash import TOOL as BASH
from kedge.tools.builtin.bash import BashParams
from tests.server.client import LIMIT_S, done
from tests.server.conftest import short_dir
from tests.server.in_process import Inside, serving
from tests.tools.harness import ToolHarness


@pytest.fixture
async def inside() -> AsyncGenerator[Inside]:
    directory = short_dir()
    async with serving(directory) as inside:
        yield inside
    shutil.rmtree(directory)


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncGenerator[ToolHarness]:
    harness = ToolHarness(tmp_path)
    yield harness
    await harness.end_all()


async def jobs_of(inside: Inside, workspace: str) -> list[Job]:
    return msgspec.convert(done(await inside.ask(inside.client.get, f"{workspace}/jobs")), JobList).jobs


async def test_a_job_is_listed_and_ended(inside: Inside, harness: ToolHarness, tmp_path: Path) -> None:
    workspace = await inside.ask(inside.client.workspace, tmp_path)
    other = await inside.ask(inside.client.workspace, harness.directory)
    assert await jobs_of(inside, workspace) == []
    harness.jobs = inside.agent.jobs.of(workspace.rpartition("/")[2])
    for command in ("sleep 301", "sleep 302"):
        await BASH.run(harness, BashParams(command=command, run_in_background=True))
    newer, older = await jobs_of(inside, workspace)
    assert (newer.command, older.command) == ("sleep 302", "sleep 301")
    assert {job.state for job in (newer, older)} == {"running"}
    assert await jobs_of(inside, other) == []
    foreign = await inside.ask(inside.client.post, f"{other}/jobs/{older.id}/kill")
    assert (foreign.status, foreign.code) == (404, "job_not_found")
    async with asyncio.timeout(LIMIT_S):
        ended = msgspec.convert(done(await inside.ask(inside.client.post, f"{workspace}/jobs/{older.id}/kill")), Job)
    assert (ended.id, ended.state, ended.exit_code) == (older.id, "ended", -15)
    assert [job.state for job in await jobs_of(inside, workspace)] == ["running", "ended"]
