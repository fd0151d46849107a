"""Background jobs of a workspace: seen, and ended."""

from __future__ import annotations

from kedge.protocol.sessions import JobList
from kedge.server.operations import Call, Reply


async def list_jobs(call: Call) -> Reply:
    call.engine.feed(call["workspace_id"])
    return Reply(JobList([job.info() for job in call.context.agent.jobs.of(call["workspace_id"]).list()]))


async def kill_job(call: Call) -> Reply:
    call.engine.feed(call["workspace_id"])
    job = await call.context.agent.jobs.of(call["workspace_id"]).kill(call["job_id"])
    return Reply(job.info())
