"""The jobs of a workspace over HTTP: listed, ended, and nobody else's."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncGenerator
from pathlib import Path

import msgspec
import pytest

from kedge.protocol.sessions import Job, JobList, JobOutput
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


async def test_output_and_the_end_of_a_job_are_waited_for(inside: Inside, harness: ToolHarness, tmp_path: Path) -> None:
    workspace = await inside.ask(inside.client.workspace, tmp_path)
    harness.jobs = inside.agent.jobs.of(workspace.rpartition("/")[2])
    started = asyncio.create_task(inside.ask(inside.client.get, f"{workspace}/jobs?wait=60"))
    command = "echo größer; read -r line < gate; printf 'then \\xe2\\x82'; read -r line < gate; printf '\\xac'; exit 3"
    os.mkfifo(harness.directory / "gate")
    await BASH.run(harness, BashParams(command=command, run_in_background=True))
    async with asyncio.timeout(LIMIT_S):
        (job,) = msgspec.convert(done(await started), JobList).jobs
        first = await output_of(inside, workspace, job, after=0)
        assert (first.text, first.next) == ("größer\n", 9)
        ended = asyncio.create_task(inside.ask(inside.client.get, f"{workspace}/jobs?wait=60&running={job.id}"))
        second = asyncio.create_task(output_of(inside, workspace, job, after=first.next))
        await asyncio.to_thread((harness.directory / "gate").write_text, "go\n")
        assert (await second).text == "then "
        assert not ended.done()
        await asyncio.to_thread((harness.directory / "gate").write_text, "go\n")
        (job,) = msgspec.convert(done(await ended), JobList).jobs
    assert (job.state, job.exit_code) == ("ended", 3)
    last = await output_of(inside, workspace, job, after=(await second).next)
    assert last.text == "€"
    assert (await output_of(inside, workspace, job, after=None)).text == "größer\nthen €"


async def output_of(inside: Inside, workspace: str, job: Job, *, after: int | None) -> JobOutput:
    query = "" if after is None else f"?wait=60&after={after}"
    return msgspec.convert(
        done(await inside.ask(inside.client.get, f"{workspace}/jobs/{job.id}/output{query}")), JobOutput
    )
