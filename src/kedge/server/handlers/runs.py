"""Runs: submit, wait, cancel, the queue; and background jobs."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Coroutine
from typing import Any

from kedge.protocol.api import (
    AgentState,
    Cancelled,
    JobOutputQuery,
    JobsQuery,
    ModeBody,
    MoveBody,
    PromoteBody,
    Queue,
    RunQuery,
    Runs,
    RunsQuery,
    ShellBody,
    SubmitBody,
    SummarizeBody,
)
from kedge.protocol.environment import decode_environment
from kedge.protocol.runs import Submission
from kedge.protocol.sessions import JobList
from kedge.server.http import Request, Response


async def get_agent_state(request: Request) -> Response:
    """Whether the agent is busy and ready."""
    model = await request.context.agent.default_model(request.directory, decode_environment(request.headers))
    is_busy = request.engine.actors.is_busy(request.workspace_id)
    return Response(AgentState(is_busy=is_busy, is_ready=model is not None, model=model))


async def submit_prompt(request: Request) -> Response:
    """Submit a prompt; 202 means that it is stored durably."""
    began = time.perf_counter()
    body = request.body(SubmitBody)
    submission = Submission(
        session_id=body.session_id,
        prompt=body.prompt,
        attachments=body.attachments,
        on_busy=body.on_busy,
        permissions=body.permissions,
        model=body.model,
        options=body.options,
    )
    response = await _accept(request, submission, body)
    request.context.metrics.accept.observe(time.perf_counter() - began)
    return response


async def summarize_session(request: Request) -> Response:
    """Summarize a session to make room in the model's context."""
    body = request.body(SummarizeBody)
    submission = Submission(
        session_id=request.session_id, prompt="", kind="summarize", on_busy=body.on_busy, model=body.model
    )
    return await _accept(request, submission, body)


async def run_shell_command(request: Request) -> Response:
    """Run the user's own shell command; the model sees it with the next prompt."""
    body = request.body(ShellBody)
    submission = Submission(session_id=request.session_id, prompt=body.command, kind="shell", on_busy=body.on_busy)
    return await _accept(request, submission, body)


async def _accept(request: Request, submission: Submission, body: SubmitBody | SummarizeBody | ShellBody) -> Response:
    receipt = await request.engine.runs.accept(request.workspace_id, submission, run_id=body.run_id, env=body.env)
    return Response(receipt, 202, {"location": f"/v1/workspaces/{request.workspace_id}/runs/{receipt.run_id}"})


async def list_runs(request: Request) -> Response:
    """List runs."""
    request.engine.require_workspace(request.workspace_id)
    query = request.query(RunsQuery)
    found = await request.engine.store.runs(
        request.workspace_id, query.session_id, query.state, query.limit, query.prefix
    )
    return Response(Runs(found))


async def get_run(request: Request) -> Response:
    """Get a run, or wait for its end."""
    wait_s, run_id = request.query(RunQuery).wait, request.path["run_id"]
    if wait_s:
        return Response(await request.run_while_connected(request.engine.wait(request.workspace_id, run_id, wait_s)))
    return Response(await request.engine.store.run(request.workspace_id, run_id))


async def cancel_run(request: Request) -> Response:
    """Cancel a run."""
    return Response(await request.engine.store.cancel_run(request.workspace_id, request.path["run_id"]))


async def switch_mode(request: Request) -> Response:
    """Switch the mode of a run, from its next tool call on."""
    mode, run_id, engine = request.body(ModeBody).mode, request.path["run_id"], request.engine
    options = await engine.store.options_of(request.workspace_id, run_id)
    env = engine.runs.env.get((request.workspace_id, run_id))
    await request.context.agent.check_mode(mode, options, request.directory, env)
    return Response(await engine.store.switch_mode(request.workspace_id, run_id, mode))


async def cancel_session(request: Request) -> Response:
    """Cancel all open runs of a session."""
    return Response(Cancelled(await request.engine.store.cancel_session(request.workspace_id, request.session_id)))


async def get_session_status(request: Request) -> Response:
    """Get a session with its running and queued prompts."""
    return Response(await request.engine.store.session_status(request.workspace_id, request.session_id))


async def list_queue(request: Request) -> Response:
    """List queued prompts."""
    status = await request.engine.store.session_status(request.workspace_id, request.session_id)
    return Response(Queue(status.queue))


async def move_queued_prompt(request: Request) -> Response:
    """Move a queued prompt in front of another one, or to the end."""
    body = request.body(MoveBody)
    queue = await request.engine.store.move_queued(request.workspace_id, request.session_id, body.run_id, body.before)
    return Response(Queue(queue))


async def promote_queued_prompt(request: Request) -> Response:
    """Send a queued prompt into the running turn, or interrupt that turn with it."""
    body = request.body(PromoteBody)
    run = await request.engine.store.promote_queued(request.workspace_id, request.session_id, body.run_id, body.on_busy)
    return Response(run)


async def clear_queue(request: Request) -> Response:
    """Remove all queued prompts."""
    return Response(Cancelled(await request.engine.store.drop_queued(request.workspace_id, request.session_id, None)))


async def get_queued_prompt(request: Request) -> Response:
    """Get a queued prompt with its attachments."""
    store, run_id = request.engine.store, request.path["run_id"]
    return Response(await store.queued_prompt(request.workspace_id, request.session_id, run_id))


async def remove_queued_prompt(request: Request) -> Response:
    """Remove a queued prompt."""
    await request.engine.store.drop_queued(request.workspace_id, request.session_id, request.path["run_id"])
    return Response(Cancelled([request.path["run_id"]]))


async def list_jobs(request: Request) -> Response:
    """List background jobs, newest first, or wait until others are running."""
    request.engine.require_workspace(request.workspace_id)
    query, jobs = request.query(JobsQuery), request.context.agent.jobs.of(request.workspace_id)
    if query.wait:
        running = {each for each in query.running.split(",") if each}
        await request.run_while_connected(_wait_at_most(query.wait, jobs.wait_change(running)))
    return Response(JobList([job.info() for job in jobs.list()]))


async def get_job_output(request: Request) -> Response:
    """Get output of a background job, or wait for more."""
    request.engine.require_workspace(request.workspace_id)
    query = request.query(JobOutputQuery)
    job = request.context.agent.jobs.of(request.workspace_id).find(request.path["job_id"])
    if query.wait:
        await request.run_while_connected(_wait_at_most(query.wait, job.wait_output(query.after or 0)))
    return Response(await asyncio.to_thread(job.read_output, query.after))


async def _wait_at_most(seconds: float, work: Coroutine[Any, Any, None]) -> None:
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(work, seconds)


async def kill_job(request: Request) -> Response:
    """Kill a background job."""
    request.engine.require_workspace(request.workspace_id)
    job = await request.context.agent.jobs.of(request.workspace_id).kill(request.path["job_id"])
    return Response(job.info())
