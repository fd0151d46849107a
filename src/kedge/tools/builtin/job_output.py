"""`job_output`: new output and the status of a background job; can wait for either."""

from __future__ import annotations

import asyncio
from typing import Annotated, Literal

import msgspec

from kedge.protocol.tools import BUILT_IN_TOOLS
from kedge.tools.port import Output, Tool, ToolContext
from kedge.tools.process.command import Job

MAX_WAIT_S = 300


class JobOutputParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    job_id: Annotated[str, msgspec.Meta(description="the job's id, as bash gave it")]
    wait: Annotated[float, msgspec.Meta(ge=0, le=MAX_WAIT_S, description="wait up to that many seconds")] = 0
    until: Annotated[
        Literal["end", "output"], msgspec.Meta(description="what to wait for: its end, or anything new")
    ] = "end"


async def run(ctx: ToolContext, params: JobOutputParams) -> Output:
    job = ctx.jobs.get(params.job_id)
    if params.wait:
        await _wait(job, params)
    command = job.command
    # Before the output: what arrives in between is for the next call.
    status, has_failed = job.status, not job.is_running and command.exit_code != 0
    text = command.take_output().rstrip("\n")
    content = f"{text}\n[{status}]" if text else f"(no new output)\n[{status}]"
    advice = f"\n[{command.sandbox}]" if has_failed and command.sandbox else ""
    return Output(content=content, advice=advice, metadata={"job_id": job.id, "exit_code": command.exit_code})


async def _wait(job: Job, params: JobOutputParams) -> None:
    awaited = job.command.finished if params.until == "end" else job.command.new_output
    try:
        async with asyncio.timeout(params.wait):
            await awaited.wait()
    except TimeoutError:
        return


TOOL = Tool(facts=BUILT_IN_TOOLS["job_output"], params=JobOutputParams, run=run)
