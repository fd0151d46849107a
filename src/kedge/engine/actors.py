"""Session actors: one task for each session with open runs; it runs the oldest one, ends it, and takes the next (P5).

Actors decide nothing: the rows do. A cancel is committed first and then passed to the actor; if that message is lost,
the transaction that ends the turn still finds the cancel.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Literal

from kedge import failpoints
from kedge.engine.concurrency import TurnSlot, TurnSlots, retry_store, wait_or_cancel
from kedge.engine.errors import TurnFailed
from kedge.engine.message_writer import TurnWriter
from kedge.engine.processes import process_groups
from kedge.engine.turn import Turn, TurnContext, TurnDeps
from kedge.protocol.errors import KedgeError
from kedge.protocol.runs import RunKind
from kedge.store.errors import ClaimLost
from kedge.store.port import Outcome, Started

log = logging.getLogger(__name__)

Stop = Literal["cancel", "shutdown"]

RESTART_S = 1.0  # before another actor replaces one that failed: a bug must not repeat in a tight loop


class Actors:
    def __init__(self, deps: TurnDeps, turns: Mapping[RunKind, Turn], max_turns: int) -> None:
        self.deps = deps
        self.turns = turns
        self.slots = TurnSlots(max_turns)
        self._active: dict[str, tuple[SessionActor, asyncio.Task[None]]] = {}  # by session
        self._is_closed = False  # no new actor starts

    def __len__(self) -> int:
        return len(self._active)

    @property
    def tasks(self) -> set[asyncio.Task[None]]:
        return {task for _, task in self._active.values()}

    def is_busy(self, workspace_id: str) -> bool:
        return any(actor.workspace_id == workspace_id for actor, _ in self._active.values())

    def wake(self, workspace_id: str, session_id: str, *, is_child: bool) -> None:
        """Look for a new run of the session. While the server stops, only sub-agents of running turns are started."""
        if session_id in self._active:
            self._active[session_id][0].wake()
        elif not self._is_closed and (is_child or not self.deps.runs.is_stopping):
            actor = SessionActor(self, workspace_id, session_id, is_child=is_child)
            task = asyncio.get_running_loop().create_task(self._run(actor))
            self._active[session_id] = (actor, task)

    def stop_run(self, session_id: str, run_id: str) -> None:
        if session_id in self._active:
            self._active[session_id][0].stop_run(run_id)

    async def end_sub_agents(self, workspace_id: str, run_id: str, timeout_s: float) -> None:
        """Stop the turns that a run delegated to, and wait until they and their processes have ended."""
        actors = [actor for actor, _ in self._active.values() if actor.workspace_id == workspace_id]
        if turns := [actor.end_turn() for actor in actors if actor.parent_run_id == run_id]:
            await asyncio.wait(turns, timeout=timeout_s)

    async def suspend_all(self, timeout_s: float) -> None:
        """End every turn and leave its run to the next server (P15)."""
        self._is_closed = True
        for actor, _ in list(self._active.values()):
            actor.stop("shutdown")
        await wait_or_cancel(self.tasks, timeout_s)

    async def _run(self, actor: SessionActor) -> None:
        try:
            await actor.work()
        except Exception:
            # A session must never stay busy because of a bug: another actor tries again, up to the last attempt.
            log.exception("the actor of session %s failed", actor.session_id)
            self.deps.tasks.start(self._wake_later(actor))
        finally:
            del self._active[actor.session_id]

    async def _wake_later(self, failed: SessionActor) -> None:
        await asyncio.sleep(RESTART_S)
        self.wake(failed.workspace_id, failed.session_id, is_child=failed.is_child)


class SessionActor:
    def __init__(self, actors: Actors, workspace_id: str, session_id: str, *, is_child: bool) -> None:
        self.workspace_id = workspace_id
        self.session_id = session_id
        self.active_run_id: str | None = None
        self.parent_run_id: str | None = None  # of the active run, if it is a sub-agent's
        self.is_child = is_child
        self._actors = actors
        self._deps = actors.deps
        self._may_have_runs = True
        self._is_shutting_down = False
        self._stopped: set[str] = set()  # runs to stop whose start was not known here yet
        self._stop: asyncio.Future[Stop] | None = None
        self._turn_over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def wake(self) -> None:
        self._may_have_runs = True

    def stop(self, why: Stop) -> None:
        """End the active turn; a second call does nothing. A shutdown also ends a turn that is being started."""
        self._is_shutting_down = self._is_shutting_down or why == "shutdown"
        if self._stop is not None and not self._stop.done():
            self._stop.set_result(why)

    def stop_run(self, run_id: str) -> None:
        """Stop this run's turn, if it is the active one or is being started."""
        if self.active_run_id == run_id:
            self.stop("cancel")
        elif self.active_run_id is None:
            self._stopped.add(run_id)

    def end_turn(self) -> asyncio.Future[None]:
        """Stop the active turn; the returned future is done when it is over."""
        self.stop("cancel")
        return self._turn_over

    async def work(self) -> None:
        """Run turn after turn until no run is open. No `await` lies between the last check of `wake` and the return,
        so no new run is missed."""
        while self._may_have_runs and self._may_start:
            self._may_have_runs = False
            async with self._actors.slots.take(is_counted=not self.is_child) as slot:
                while self._may_start and await self._run_turn(slot):
                    await slot.acquire()  # a turn that was canceled while it lent its slot returns without it

    @property
    def _may_start(self) -> bool:
        return not self._is_shutting_down and (self.is_child or not self._deps.runs.is_stopping)

    async def _run_turn(self, slot: TurnSlot) -> bool:
        """Run the session's next turn; returns False if it has no open run."""
        started = await retry_store(lambda: self._deps.store.start(self.workspace_id, self.session_id))
        if started is None:
            return False
        failpoints.hit("turn.begin")
        self.active_run_id, self.parent_run_id = started.run.run_id, started.run.parent_run_id
        self._stop = asyncio.get_running_loop().create_future()
        self._turn_over = asyncio.get_running_loop().create_future()
        if started.run.run_id in self._stopped:
            self.stop("cancel")
        elif self._is_shutting_down:
            self.stop("shutdown")
        self._stopped.clear()
        try:
            await self._work_on(started, slot, self._stop)
        finally:
            self.active_run_id = self.parent_run_id = None
            self._stop = None
            self._turn_over.set_result(None)
        return True

    async def _work_on(self, started: Started, slot: TurnSlot, stop: asyncio.Future[Stop]) -> None:
        deps, claim = self._deps, started.claim
        turn_writer = TurnWriter(deps.store, deps.feeds.require(claim.workspace_id), claim)
        ctx = TurnContext(deps, started, turn_writer, slot)
        task = asyncio.create_task(_call_turn(self._actors.turns.get(started.run.kind), ctx))
        try:
            await asyncio.wait({task, stop}, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            task.cancel()
            raise
        is_over = task.done() and not task.cancelled() and task.result().state != "cancelled"
        try:
            survivors = await self._wind_down(task, ctx, turn_writer)
        except Exception:
            log.exception("the turn of run %s could not be wound down", claim.run_id)
            survivors = []  # a bug must not keep the run from ending
        failpoints.hit("turn.stopped")
        is_shutdown = stop.done() and stop.result() == "shutdown"
        if not is_shutdown:  # else the next server settles the recorded files
            await deps.file_recorder.release(claim.workspace_id, claim.run_id)
        if is_over:
            await self._end(started, task.result())
        elif is_shutdown:
            await retry_store(lambda: deps.store.suspend(claim))
        else:
            await self._end(started, Outcome("cancelled", survivors=tuple(survivors)))

    async def _wind_down(self, task: asyncio.Task[Outcome], ctx: TurnContext, turn_writer: TurnWriter) -> list[str]:
        """Revoke the turn's right to write, stop it and its processes, and return in time whatever they do (P6).

        Returns the processes that outlived SIGKILL.
        """
        turn_writer.is_revoked = True
        processes = self._deps.processes
        timeout_s = processes.term_s + processes.kill_s
        task.cancel()
        survivors, _, _ = await asyncio.gather(
            process_groups.end_groups(ctx.groups, processes.term_s, processes.kill_s),
            asyncio.wait({task}, timeout=timeout_s),
            self._actors.end_sub_agents(self.workspace_id, ctx.run.run_id, timeout_s),
        )
        processes.user_groups.difference_update(ctx.groups)
        if not task.done():
            log.warning("the turn of run %s ignores its cancellation and was left behind", ctx.run.run_id)
            self._deps.tasks.adopt(task)  # its writes raise ClaimLost
        await retry_store(turn_writer.close)
        return survivors

    async def _end(self, started: Started, outcome: Outcome) -> None:
        store, claim = self._deps.store, started.claim
        try:
            await retry_store(lambda: store.finish(claim, outcome))
        except Exception:
            # A session must never stay busy because of a bug: try the simplest end.
            log.exception("the end of run %s could not be written", claim.run_id)
            plain = Outcome("failed", "internal error: the end could not be written", "internal")
            await retry_store(lambda: store.finish(claim, plain))


async def _call_turn(turn: Turn | None, ctx: TurnContext) -> Outcome:
    """Turn everything that an agent raises into an outcome of this run alone."""
    if turn is None:
        return _make_failure(f"this server cannot do runs of kind {ctx.run.kind!r}", "unsupported")
    try:
        await ctx.end_stored_wait()
        await turn(ctx)
    except TurnFailed as error:
        return _make_failure(error.text, error.code)
    except ClaimLost:
        return Outcome("cancelled")
    except KedgeError as error:
        return _make_failure(error.message, error.code)
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        return _make_failure("the turn was canceled from inside", "internal")
    except (KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:  # also SystemExit and groups with one: a session must never stay busy
        log.exception("the turn of run %s failed", ctx.run.run_id)
        return _make_failure(f"internal error: {type(error).__name__}: {error}", "internal")
    return Outcome("completed")


def _make_failure(text: str, code: str) -> Outcome:
    """Return the outcome of a failed turn, in valid Unicode: errors may contain lone surrogates."""
    return Outcome("failed", text.encode("utf-8", "replace").decode(), code)
