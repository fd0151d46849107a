"""`job_kill`: ends all processes of a background job."""

from __future__ import annotations

from typing import Annotated

import msgspec

from kedge.protocol.tools import BUILT_IN_TOOLS
from kedge.tools.errors import ToolError
from kedge.tools.port import Output, Tool, ToolContext


class JobKillParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    job_id: Annotated[str, msgspec.Meta(description="the job's id, as bash gave it")]


async def run(ctx: ToolContext, params: JobKillParams) -> Output:
    job = ctx.jobs.get(params.job_id)
    if job.is_running:
        await ctx.jobs.kill(job.id)
        if job.command.survivors:
            raise ToolError(f"Job {job.id} cannot be ended: {', '.join(job.command.survivors)} outlived SIGKILL.")
    text = job.command.take_output().rstrip("\n")
    content = f"{text}\n[{job.status}]" if text else f"[{job.status}]"
    return Output(content=content, metadata={"job_id": job.id, "exit_code": job.command.exit_code})


TOOL = Tool(facts=BUILT_IN_TOOLS["job_kill"], params=JobKillParams, run=run)
