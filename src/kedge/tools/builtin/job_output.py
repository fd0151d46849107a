"""`job_output`: what a background job said since it was last asked, and how it is; waits for news if it should."""

from __future__ import annotations

import asyncio
from typing import Annotated, Literal

import msgspec

from kedge.protocol.tools import BUILT_IN_TOOLS
from kedge.tools.port import Output, Tool, ToolContext
from kedge.tools.process.jobs import Job

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
    # Before its output is taken: what comes between the two is for the next time.
    status = job.status
    said = command.take().rstrip("\n")
    content = f"{said}\n[{status}]" if said else f"(no new output)\n[{status}]"
    return Output(content=content, metadata={"job_id": job.id, "exit_code": command.exit_code})


async def _wait(job: Job, params: JobOutputParams) -> None:
    awaited = job.command.over if params.until == "end" else job.command.news
    try:
        async with asyncio.timeout(params.wait):
            await awaited.wait()
    except TimeoutError:
        return


TOOL = Tool(facts=BUILT_IN_TOOLS["job_output"], params=JobOutputParams, run=run)
