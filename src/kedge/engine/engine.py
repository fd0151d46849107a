"""The engine: prompts go to its `runs`, cancels to its `store`, and it acts on what was committed.

A new run wakes its session's actor, a cancel stops a turn, an end resolves those that wait for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from kedge import failpoints
from kedge.engine.actors import Actors
from kedge.engine.concurrency import Tasks, Waiters, retry_store
from kedge.engine.files.recorder import FileRecorder
from kedge.engine.files.undo import UndoManager
from kedge.engine.processes import process_groups, reaper
from kedge.engine.processes.registry import ProcessRegistry
from kedge.engine.runs import Runs, check_change, check_title, resolve_directory
from kedge.engine.turn import Turn, TurnDeps
from kedge.engine.workspace_host import WorkspaceHost
from kedge.feed.feed import RING_BYTES, Feed
from kedge.feed.feeds import Feeds, stream
from kedge.files.versions import Versions
from kedge.protocol.errors import KedgeError
from kedge.protocol.requests import Answer, AnswerReceipt, PermissionAction, PermissionRequest, RequestResolution
from kedge.protocol.runs import Mode, Run, RunEnd, RunKind, RunStatus
from kedge.protocol.sessions import Session, SessionChange, Workspace
from kedge.protocol.validation import check_depth, check_text
from kedge.store.port import Committed, OnCommit, Retention, Store

log = logging.getLogger(__name__)

MAX_TURNS = 100  # running turns of all sessions; more would only wait for the machine
SHUTDOWN_S = 5.0  # P15
CLOSE_S = 1.0  # for the last transactions; what a failing disk delays longer is decided by the next server
RETENTION_EVERY_S = 3600.0

WriteRules = Callable[[PermissionRequest], Awaitable[None]]


class Engine:
    """Create it, `await start()` it, and `await shutdown()` it."""

    def __init__(
        self,
        store: Store,
        turns: Mapping[RunKind, Turn],
        *,
        new_id: Callable[[], str],
        retention: Retention | None = None,
        max_turns: int = MAX_TURNS,
        term_s: float = process_groups.TERM_S,
        kill_s: float = process_groups.KILL_S,
        observe: OnCommit = lambda _: None,
        versions: Versions | None = None,
        ring_bytes: int = RING_BYTES,
        now: Callable[[], float] = time.time,
    ) -> None:
        self.store = store
        self.feeds = Feeds(ring_bytes=ring_bytes)
        self.retention = retention or Retention()
        self.tasks = Tasks()
        self.runs = Runs(store, self.feeds, self.tasks, new_id)
        self.answers: Waiters[str, Answer] = Waiters()
        self.modes: Waiters[tuple[str, str], Mode | None] = Waiters()
        self.processes = ProcessRegistry(store, term_s, kill_s)
        self.file_recorder = FileRecorder(store, versions or Versions(None), self.root_of, self.tasks, self.processes)
        self.undos = UndoManager(store, self.file_recorder, self.root_of, self.tasks, self.runs.check_accepting)
        self.actors = Actors(
            TurnDeps(
                store=store,
                feeds=self.feeds,
                runs=self.runs,
                answers=self.answers,
                modes=self.modes,
                processes=self.processes,
                file_recorder=self.file_recorder,
                tasks=self.tasks,
                now=now,
            ),
            turns,
            max_turns,
        )
        self._observe = observe
        self._answering = asyncio.Lock()
        self._hurry: asyncio.Future[None] | None = None  # done: stop without waiting for running turns

    async def start(self) -> None:
        """End what a dead server left behind, decide its unfinished runs, and continue them (P13)."""
        for state in await self.store.workspaces():
            self.feeds.open(state)
        self.store.on_commit = self._apply_events
        left, processes = await self.store.left_processes(), self.processes
        if survivors := await process_groups.end_left(left, processes.term_s, processes.kill_s):
            log.warning("processes of an earlier server that cannot be ended: %s", ", ".join(survivors))
        failpoints.hit("start.processes_ended")
        await self.store.recover()
        for kept in await self.store.kept_calls():
            self.feeds.require(kept.workspace_id).open_items.restore(kept.message, kept.result)
        await self.undos.recover()
        for workspace_id, session_id in await self.store.unfinished_deletes():
            await self.store.end_delete_session(workspace_id, session_id)
        for workspace_id, session_id in await self.store.open_sessions():
            self.actors.wake(workspace_id, session_id, is_child=False)
        self.tasks.start(self.file_recorder.settle_all())
        self.tasks.start(self._apply_retention())

    async def shutdown(self, grace_s: float = SHUTDOWN_S) -> None:
        """Stop, and close the store. A second call makes the first one faster and returns."""
        is_first = self._hurry is None
        await self.stop(grace_s)
        if is_first:
            await self.store.close()

    async def stop(self, grace_s: float = SHUTDOWN_S) -> None:
        """Accept nothing more, let running turns end for `grace_s`, and suspend the others (P15).

        A second call ends the grace time of the first and returns.
        """
        if self._hurry is not None:
            if not self._hurry.done():
                self._hurry.set_result(None)
            return
        self._hurry = asyncio.get_running_loop().create_future()
        self.runs.is_stopping = True
        if (working := {*self.actors.tasks, *self.undos.running}) and grace_s > 0:
            ended = asyncio.ensure_future(asyncio.wait(working))
            await asyncio.wait({ended, self._hurry}, timeout=grace_s, return_when=asyncio.FIRST_COMPLETED)
            ended.cancel()
        await asyncio.gather(
            self.actors.suspend_all(self.processes.term_s + self.processes.kill_s + CLOSE_S),
            self.processes.end_jobs(),
        )
        await self.runs.finish_accepting(CLOSE_S)
        await self.tasks.cancel(CLOSE_S)
        self.feeds.close()
        self.file_recorder.versions.close()

    @property
    def is_stopping(self) -> bool:
        return self.runs.is_stopping

    @property
    def is_idle(self) -> bool:
        """Whether no run is open, no background job is alive, and no undo is running."""
        return not self.actors and not self.processes.has_jobs and not self.undos.running

    def is_agents_process(self, pid: int, pidfd: int | None) -> bool:
        """Whether a process was started by the agent, and not by a person; if unknown, True."""
        return reaper.is_agents(pid, pidfd, {group.pgid for group in self.processes.user_groups})

    # workspaces and sessions

    async def open_workspace(self, path: Path) -> Workspace:
        """Open the workspace of a directory; all clients of the same resolved path share it."""
        return await asyncio.shield(self.tasks.start(self._open_workspace(resolve_directory(path))))

    async def delete_workspace(self, workspace_id: str) -> None:
        await asyncio.shield(self.tasks.start(self._delete_workspace(workspace_id)))

    async def create_session(self, workspace_id: str, title: str = "") -> Session:
        self.runs.check_accepting()
        check_title(title)
        return await self.store.create_session(workspace_id, title)

    async def change_session(self, workspace_id: str, session_id: str, change: SessionChange) -> Session:
        """Change the title, model or effort. Queued runs that name no model use the new one."""
        check_change(change)
        return await self.store.change_session(workspace_id, session_id, change)

    async def delete_session(self, workspace_id: str, session_id: str) -> None:
        """Cancel the session's open runs, wait for their ends, and delete it. Continues if the caller is canceled."""
        await asyncio.shield(self.tasks.start(self._delete_session(workspace_id, session_id)))

    # runs

    async def wait(self, workspace_id: str, run_id: str, timeout_s: float | None = None) -> RunStatus:
        """Return the run when it has ended, or its current status after `timeout_s`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self.runs.wait_end(workspace_id, run_id)
        return await self.store.run(workspace_id, run_id)

    # requests to a person

    async def answer_permission(
        self,
        workspace_id: str,
        request_id: str,
        action: PermissionAction,
        by: str,
        *,
        reason: str | None = None,
        write_rules: WriteRules | None = None,
    ) -> AnswerReceipt:
        """Answer a permission request. A blank `reason`, or one of another action than `deny`, counts as none.

        `write_rules` is called for `allow_always` before the answer is committed: if it fails, the request stays open.
        """
        check_text(by, "client name")
        check_text(reason or "", "reason")
        reason = (reason or "").strip() if action == "deny" else ""
        async with self._answering:  # no other answer may come between the rules and this one
            if action == "allow_always" and write_rules is not None:
                pending = await self.store.pending_requests(workspace_id, "permission")
                for request in pending:
                    if request.id == request_id and isinstance(request, PermissionRequest):
                        await write_rules(request)
            answer = Answer(action=action, by=by, reason=reason or None)
            return await self.store.answer(workspace_id, "permission", request_id, answer)

    async def answer_question(
        self, workspace_id: str, request_id: str, answers: list[object] | None, by: str
    ) -> AnswerReceipt:
        """Answer a question; None cancels it."""
        check_depth(answers, "answers")
        check_text(by, "client name")
        answer = Answer(action="cancel" if answers is None else "answer", by=by, answers=answers)
        return await self.store.answer(workspace_id, "question", request_id, answer)

    # events

    def feed(self, workspace_id: str) -> Feed:
        """Return the workspace's feed; raises `NotFound`."""
        return self.feeds.require(workspace_id)

    def require_workspace(self, workspace_id: str) -> Workspace:
        """Return the workspace; raise `NotFound` if there is none with this id."""
        return self.feed(workspace_id).workspace

    def subscribe(
        self, workspace_id: str, *, after: int | None = None, log_id: str | None = None, session_id: str | None = None
    ) -> AsyncGenerator[bytes]:
        return stream(self.feed(workspace_id), self.store, after=after, log_id=log_id, session_id=session_id)

    def host_of(self, workspace_id: str) -> WorkspaceHost:
        """What services of the workspace need that outlive its runs; raises `NotFound`."""
        return WorkspaceHost(self.processes, self.feed(workspace_id))

    def root_of(self, workspace_id: str) -> Path:
        return Path(self.feed(workspace_id).path)

    async def _open_workspace(self, path: str) -> Workspace:
        state = await self.store.open_workspace(path)
        self.feeds.open(state)
        return state.workspace

    async def _delete_workspace(self, workspace_id: str) -> None:
        await self.store.delete_workspace(workspace_id)
        self.feeds.remove(workspace_id)
        await self.processes.end_jobs(workspace_id)

    async def _delete_session(self, workspace_id: str, session_id: str) -> None:
        for run_id in await self.store.begin_delete_session(workspace_id, session_id):
            await retry_store(partial(self.runs.wait_end, workspace_id, run_id))
        await self.undos.wait_for_all()  # the rows of this session's undos are deleted with it
        await retry_store(lambda: self.store.end_delete_session(workspace_id, session_id))

    async def _apply_retention(self) -> None:
        while True:
            try:
                await self.store.retain(self.retention)
                await self.file_recorder.pruner.prune()
            except KedgeError as error:
                log.warning("retention: %s", error.message)
            await asyncio.sleep(RETENTION_EVERY_S)

    def _apply_events(self, events: Sequence[Committed]) -> None:
        self.feeds.publish(events)
        try:
            self._observe(events)
        except Exception:
            log.exception("an observer of events failed")  # it must not delay the others
        for event in events:
            match event.payload:
                case Run() as run:
                    self._apply_run(event.workspace_id, run)
                case RunEnd() as end:
                    self.runs.apply_end(event.workspace_id, end)
                    # If it was ended with its parent, its own turn still runs.
                    self.actors.stop_run(end.session_id, end.run_id)
                case RequestResolution(action=action, by=by, answers=answers, reason=reason) as resolution:
                    answer = Answer(action=action, by=by, answers=answers, reason=reason)
                    self.answers.resolve(resolution.id, answer)
                case _:
                    pass

    def _apply_run(self, workspace_id: str, run: Run) -> None:
        if run.state == "queued":
            self.actors.wake(workspace_id, run.session_id, is_child=run.parent_run_id is not None)
        elif run.state == "running" and run.cancel_requested:
            self.actors.stop_run(run.session_id, run.run_id)
        elif run.state == "running":
            self.modes.resolve((workspace_id, run.run_id), run.mode)
