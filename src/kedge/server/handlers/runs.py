"""Prompts and what becomes of them: submit, follow, cancel, and the queue."""

from __future__ import annotations

import time
from pathlib import Path

from kedge.protocol.api import (
    AgentState,
    Cancelled,
    Queue,
    RunQuery,
    Runs,
    RunsQuery,
    ShellBody,
    SubmitBody,
    SummarizeBody,
)
from kedge.protocol.environment import environment_of
from kedge.protocol.runs import Submission
from kedge.protocol.sessions import JobList
from kedge.server.http import Call, Reply


async def agent_state(call: Call) -> Reply:
    feed = call.engine.feed(call["workspace_id"])
    model = await call.context.agent.default_model(Path(feed.path), environment_of(call.headers))
    is_busy = call.engine.actors.is_busy(call["workspace_id"])
    return Reply(AgentState(is_busy=is_busy, is_ready=model is not None, model=model))


async def submit(call: Call) -> Reply:
    began = time.perf_counter()
    body = call.body(SubmitBody)
    submission = Submission(
        session_id=body.session_id,
        prompt=body.prompt,
        attachments=body.attachments,
        on_busy=body.on_busy,
        permissions=body.permissions,
        model=body.model,
        options=body.options,
    )
    reply = await _accept(call, submission, body)
    call.context.metrics.accept.observe(time.perf_counter() - began)
    return reply


async def summarize(call: Call) -> Reply:
    body = call.body(SummarizeBody)
    submission = Submission(
        session_id=call["session_id"], prompt="", kind="summarize", on_busy=body.on_busy, model=body.model
    )
    return await _accept(call, submission, body)


async def shell(call: Call) -> Reply:
    body = call.body(ShellBody)
    submission = Submission(session_id=call["session_id"], prompt=body.command, kind="shell", on_busy=body.on_busy)
    return await _accept(call, submission, body)


async def _accept(call: Call, submission: Submission, body: SubmitBody | SummarizeBody | ShellBody) -> Reply:
    receipt = await call.engine.accept(call["workspace_id"], submission, run_id=body.run_id, env=body.env)
    return Reply(receipt, 202, {"location": f"/v1/workspaces/{call['workspace_id']}/runs/{receipt.run_id}"})


async def list_runs(call: Call) -> Reply:
    call.engine.feed(call["workspace_id"])
    query = call.query(RunsQuery)
    runs = await call.engine.store.runs(call["workspace_id"], query.session_id, query.state, query.limit)
    return Reply(Runs(runs))


async def get_run(call: Call) -> Reply:
    wait_s = call.query(RunQuery).wait
    if wait_s:
        return Reply(await call.while_wanted(call.engine.wait(call["workspace_id"], call["run_id"], wait_s)))
    return Reply(await call.engine.store.run(call["workspace_id"], call["run_id"]))


async def cancel_run(call: Call) -> Reply:
    return Reply(await call.engine.cancel_run(call["workspace_id"], call["run_id"]))


async def cancel_session(call: Call) -> Reply:
    return Reply(Cancelled(await call.engine.cancel_session(call["workspace_id"], call["session_id"])))


async def session_status(call: Call) -> Reply:
    return Reply(await call.engine.store.session_status(call["workspace_id"], call["session_id"]))


async def list_queue(call: Call) -> Reply:
    status = await call.engine.store.session_status(call["workspace_id"], call["session_id"])
    return Reply(Queue(status.queue))


async def clear_queue(call: Call) -> Reply:
    return Reply(Cancelled(await call.engine.clear_queue(call["workspace_id"], call["session_id"])))


async def drop_queued(call: Call) -> Reply:
    await call.engine.drop_queued(call["workspace_id"], call["session_id"], call["run_id"])
    return Reply(Cancelled([call["run_id"]]))


async def list_jobs(call: Call) -> Reply:
    call.engine.feed(call["workspace_id"])
    return Reply(JobList([job.info() for job in call.context.agent.jobs.of(call["workspace_id"]).list()]))


async def kill_job(call: Call) -> Reply:
    call.engine.feed(call["workspace_id"])
    job = await call.context.agent.jobs.of(call["workspace_id"]).kill(call["job_id"])
    return Reply(job.info())
