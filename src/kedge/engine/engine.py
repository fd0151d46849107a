"""The engine: the one way in for every prompt, cancel and answer, and the place that turns the log into work.

It acts on what was committed: a new run wakes its session's actor, a cancel stops a turn, an end wakes who waits.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from kedge import failpoints
from kedge.engine.actors import Actors
from kedge.engine.concurrency import Tasks, TurnSlots, Waiters, retry_store
from kedge.engine.files.recorder import FileRecorder
from kedge.engine.files.undo import UndoManager
from kedge.engine.processes import lineage, process_groups
from kedge.engine.processes.registry import BackgroundGroups
from kedge.engine.turn import Turn
from kedge.engine.validation import check_env, check_submission, checked_change, checked_title, resolved_directory
from kedge.feed.feed import Feed, Feeds
from kedge.files.versions import Versions
from kedge.protocol.bounds import check_depth, check_run_id, check_text
from kedge.protocol.errors import KedgeError, NotFound, ShuttingDown
from kedge.protocol.requests import Answer, AnswerReceipt, PermissionAction, RequestKind, RequestResolution
from kedge.protocol.runs import OPEN_STATES, Receipt, Run, RunEnd, RunKind, RunStatus, Submission
from kedge.protocol.sessions import Session, SessionChange, Workspace
from kedge.store.port import Committed, OnCommit, ProcessRecord, Retention, Store

log = logging.getLogger(__name__)

MAX_TURNS = 100  # turns at work at once, over all sessions; more would only wait for the machine
SHUTDOWN_S = 5.0  # P15
LEAVE_S = 1.0  # for the last transactions; what a failing disk holds up longer is decided by the next server
RETENTION_EVERY_S = 3600.0


class Engine:
    """Make it, `await start()` it, and `await shutdown()` it. Reads that change nothing go to `store` directly."""

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
    ) -> None:
        self.store = store
        self.turns = turns
        self.feeds = Feeds(store)
        self.slots = TurnSlots(max_turns)
        self.answers: Waiters[str, Answer] = Waiters()
        self.is_stopping = False  # nothing more is accepted
        self.term_s = term_s
        self.kill_s = kill_s
        self.new_id = new_id
        self.retention = retention or Retention()
        self.tasks = Tasks()
        self._accepting = Tasks()  # their callers are told what came of it, also by a server that stops (P1)
        self.actors = Actors(self)
        self.background_groups = BackgroundGroups()
        self.user_groups: set[ProcessRecord] = set()  # of commands that a person typed; each leads a session
        self.file_recorder = FileRecorder(
            store, versions or Versions(None), self.root_of, self.tasks, self.background_groups
        )
        self.undos = UndoManager(self)
        self._observe = observe
        self._ends: Waiters[tuple[str, str], RunEnd] = Waiters()
        self._env: dict[tuple[str, str], Mapping[str, str]] = {}
        self._hurry: asyncio.Future[None] | None = None

    async def start(self) -> None:
        """P13: end what a dead server left behind, decide its unfinished runs, and go on with them."""
        for state in await self.store.workspaces():
            self.feeds.open(state)
        self.store.on_commit = self._committed
        if survivors := await process_groups.end_left(await self.store.left_processes(), self.term_s, self.kill_s):
            log.warning("left behind by an earlier server, and cannot be ended: %s", ", ".join(survivors))
        failpoints.hit("start.processes_ended")
        await self.store.recover()
        await self.undos.recover()
        for workspace_id, session_id in await self.store.unfinished_deletes():
            await self.store.end_delete_session(workspace_id, session_id)
        for workspace_id, session_id in await self.store.open_sessions():
            self.actors.wake(workspace_id, session_id, is_child=False)
        self.tasks.own(self.file_recorder.settle_all())
        self.tasks.own(self._keep_retention())

    async def shutdown(self, grace_s: float = SHUTDOWN_S) -> None:
        """Stop, and close the store. Called again, it only hastens the first."""
        is_first = self._hurry is None
        await self.stop(grace_s)
        if is_first:
            await self.store.close()

    async def stop(self, grace_s: float = SHUTDOWN_S) -> None:
        """P15: accept nothing more, give what is at work a while, leave the rest to the next server. Called again: at
        once."""
        if self._hurry is not None:
            if not self._hurry.done():
                self._hurry.set_result(None)
            return
        self._hurry = asyncio.get_running_loop().create_future()
        self.is_stopping = True
        if (working := {*self.actors.tasks, *self.undos.at_work}) and grace_s > 0:
            ended = asyncio.ensure_future(asyncio.wait(working))
            await asyncio.wait({ended, self._hurry}, timeout=grace_s, return_when=asyncio.FIRST_COMPLETED)
            ended.cancel()
        await asyncio.gather(
            self.actors.leave(patience_s=self.term_s + self.kill_s + LEAVE_S),
            self.background_groups.end(self.term_s, self.kill_s),
        )
        await self._accepting.finish(patience_s=LEAVE_S)
        await self.tasks.end(patience_s=LEAVE_S)
        self.feeds.close()
        self.file_recorder.versions.close()

    def is_agents_process(self, pid: int, pidfd: int | None) -> bool:
        """Whether something that the agent runs, and no person, is that process; in doubt, yes."""
        return lineage.is_agents(pid, pidfd, {group.pgid for group in self.user_groups})

    @property
    def is_idle(self) -> bool:
        """Whether no run is open, nothing that one started is still at work, and none is being undone."""
        return not self.actors and not self.background_groups and not self.undos.at_work

    # workspaces and sessions

    async def open_workspace(self, path: Path) -> Workspace:
        """Join the workspace of a directory, by its resolved path."""
        return await asyncio.shield(self.tasks.own(self._open_workspace(resolved_directory(path))))

    async def delete_workspace(self, workspace_id: str) -> None:
        await asyncio.shield(self.tasks.own(self._delete_workspace(workspace_id)))

    async def create_session(self, workspace_id: str, title: str = "") -> Session:
        self.check_accepting()
        return await self.store.create_session(workspace_id, checked_title(title))

    async def change_session(self, workspace_id: str, session_id: str, change: SessionChange) -> Session:
        """Rename it, or choose the model and the effort of its runs that name none; those that wait take it, too."""
        return await self.store.change_session(workspace_id, session_id, checked_change(change))

    async def retitle_session(self, workspace_id: str, session_id: str, expected: str, title: str) -> bool:
        """Rename it if it is still called `expected`."""
        return await self.store.retitle_session(workspace_id, session_id, expected, checked_title(title))

    async def delete_session(self, workspace_id: str, session_id: str) -> None:
        """Cancel its open runs, wait for their ends, then it is gone. Goes on when the caller leaves."""
        await asyncio.shield(self.tasks.own(self._delete_session(workspace_id, session_id)))

    # runs

    async def accept(
        self,
        workspace_id: str,
        submission: Submission,
        *,
        run_id: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> Receipt:
        """P1: when this returns the run is durable; when it raises a `KedgeError` there is none."""
        if submission.parent_run_id is None:  # a sub-agent belongs to a run that was accepted, and is left with it
            self.check_accepting()
        if run_id is None:
            run_id = self.new_id()
        check_run_id(run_id)
        check_submission(submission)
        self.feed(workspace_id)
        check_env(env)
        if env is None:
            return await self.store.accept(workspace_id, run_id, submission)
        # Goes on when the caller leaves: who else would forget the variables of a run that is refused or has ended?
        return await asyncio.shield(self._accepting.own(self._accept_with_env(workspace_id, run_id, submission, env)))

    async def cancel_session(self, workspace_id: str, session_id: str) -> list[str]:
        """P6: returns, once it is durable, the runs that it covers."""
        return await self.store.cancel_session(workspace_id, session_id)

    async def cancel_run(self, workspace_id: str, run_id: str) -> Run:
        return await self.store.cancel_run(workspace_id, run_id)

    async def clear_queue(self, workspace_id: str, session_id: str) -> list[str]:
        return await self.store.drop_queued(workspace_id, session_id, None)

    async def drop_queued(self, workspace_id: str, session_id: str, run_id: str) -> None:
        await self.store.drop_queued(workspace_id, session_id, run_id)

    async def wait(self, workspace_id: str, run_id: str, timeout_s: float | None = None) -> RunStatus:
        """The run as soon as it has ended, or as it is when the time is up."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self.wait_end(workspace_id, run_id)
        return await self.store.run(workspace_id, run_id)

    async def wait_end(self, workspace_id: str, run_id: str) -> RunEnd:
        with self._ends.waiter((workspace_id, run_id)) as waiter:
            return await self.store.run_end(workspace_id, run_id) or await waiter

    # requests to a person

    async def answer_permission(
        self, workspace_id: str, request_id: str, action: PermissionAction, by: str
    ) -> AnswerReceipt:
        return await self._answer(workspace_id, "permission", request_id, Answer(action=action, by=by))

    async def answer_question(
        self, workspace_id: str, request_id: str, answers: list[object] | None, by: str
    ) -> AnswerReceipt:
        """Answer a question; with no answers at all, it is cancelled."""
        check_depth(answers, "answers")
        action = "cancel" if answers is None else "answer"
        return await self._answer(workspace_id, "question", request_id, Answer(action=action, by=by, answers=answers))

    # the story

    def feed(self, workspace_id: str) -> Feed:
        feed = self.feeds.get(workspace_id)
        if feed is None:
            raise NotFound("workspace", workspace_id)
        return feed

    def require_workspace(self, workspace_id: str) -> Workspace:
        """Return the workspace; raise `NotFound` if there is none with this id."""
        return self.feed(workspace_id).workspace

    def subscribe(
        self,
        workspace_id: str,
        *,
        after: int | None = None,
        log_id: str | None = None,
        session_id: str | None = None,
    ) -> AsyncGenerator[bytes]:
        return self.feeds.subscribe(self.feed(workspace_id), after=after, log_id=log_id, session_id=session_id)

    # for actors, turns and undos

    def check_accepting(self) -> None:
        if self.is_stopping:
            raise ShuttingDown

    def env_of(self, workspace_id: str, run_id: str) -> Mapping[str, str] | None:
        return self._env.get((workspace_id, run_id))

    def root_of(self, workspace_id: str) -> Path:
        return Path(self.feed(workspace_id).path)

    def cancel_soon(self, workspace_id: str, run_id: str) -> None:
        self.tasks.own(self._cancel_if_there(workspace_id, run_id))

    async def _cancel_if_there(self, workspace_id: str, run_id: str) -> None:
        with contextlib.suppress(NotFound):
            await retry_store(lambda: self.store.cancel_run(workspace_id, run_id))

    async def _accept_with_env(
        self, workspace_id: str, run_id: str, submission: Submission, env: Mapping[str, str]
    ) -> Receipt:
        """The run may start before we hear of its acceptance, so its variables are there first."""
        key = (workspace_id, run_id)
        is_first = self._env.setdefault(key, env) is env
        is_open = False
        try:
            receipt = await self.store.accept(workspace_id, run_id, submission)
            is_open = receipt.state in OPEN_STATES
        finally:
            if is_first and not is_open:
                self._env.pop(key, None)
        return receipt

    async def _answer(self, workspace_id: str, kind: RequestKind, request_id: str, answer: Answer) -> AnswerReceipt:
        check_text(answer.by, "client name")
        return await self.store.answer(workspace_id, kind, request_id, answer)

    async def _open_workspace(self, path: str) -> Workspace:
        state = await self.store.open_workspace(path)
        self.feeds.open(state)
        return state.workspace

    async def _delete_workspace(self, workspace_id: str) -> None:
        await self.store.delete_workspace(workspace_id)
        self.feeds.remove(workspace_id)
        await self.background_groups.end(self.term_s, self.kill_s, workspace_id)

    async def _delete_session(self, workspace_id: str, session_id: str) -> None:
        for run_id in await self.store.begin_delete_session(workspace_id, session_id):
            await retry_store(partial(self.wait_end, workspace_id, run_id))
        await self.undos.wait_for_all()  # an undo of this session is finished first: its row goes with the session
        await retry_store(lambda: self.store.end_delete_session(workspace_id, session_id))

    async def _keep_retention(self) -> None:
        while True:
            try:
                await self.store.retain(self.retention)
                await self.file_recorder.pruner.prune()
            except KedgeError as error:
                log.warning("retention: %s", error.message)
            await asyncio.sleep(RETENTION_EVERY_S)

    def _committed(self, events: Sequence[Committed]) -> None:
        self.feeds.publish(events)
        try:
            self._observe(events)
        except Exception:
            log.exception("an observer failed")  # whoever only looks on holds up nobody
        for event in events:
            match event.payload:
                case Run() as run:
                    self._run_changed(event.workspace_id, run)
                case RunEnd() as end:
                    self._run_ended(event.workspace_id, end)
                case RequestResolution() as told:
                    self.answers.resolve(told.id, Answer(action=told.action, by=told.by, answers=told.answers))
                case _:
                    pass

    def _run_changed(self, workspace_id: str, run: Run) -> None:
        if run.state == "queued":
            self.actors.wake(workspace_id, run.session_id, is_child=run.parent_run_id is not None)
        elif run.state == "running" and run.cancel_requested:
            self.actors.stop_run(run.session_id, run.run_id)

    def _run_ended(self, workspace_id: str, end: RunEnd) -> None:
        key = (workspace_id, end.run_id)
        self._env.pop(key, None)
        self._ends.resolve(key, end)
        self.actors.stop_run(end.session_id, end.run_id)  # if it was ended from elsewhere, with its parent
