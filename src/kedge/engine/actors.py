"""The sessions at work: an actor and a task for each that has open runs, woken by what is committed."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Literal

from kedge import failpoints
from kedge.engine.concurrency import TurnSlot, retry_store, wait_for_end
from kedge.engine.errors import TurnFailed
from kedge.engine.processes import process_groups
from kedge.engine.turn import Turn, TurnContext
from kedge.engine.turn_writer import TurnWriter
from kedge.protocol.errors import KedgeError
from kedge.store.errors import ClaimLost
from kedge.store.port import Outcome, Started

if TYPE_CHECKING:
    from kedge.engine.engine import Engine

log = logging.getLogger(__name__)

Stop = Literal["cancel", "shutdown"]

AGAIN_S = 1.0  # after a mistake of ours, which should not be repeated in a tight loop


class Actors:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._at_work: dict[str, tuple[SessionActor, asyncio.Task[None]]] = {}  # by session
        self._is_leaving = False  # nothing more is begun

    def __bool__(self) -> bool:
        return bool(self._at_work)

    @property
    def tasks(self) -> set[asyncio.Task[None]]:
        return {task for _, task in self._at_work.values()}

    def is_busy(self, workspace_id: str) -> bool:
        return any(actor.workspace_id == workspace_id for actor, _ in self._at_work.values())

    def wake(self, workspace_id: str, session_id: str, *, is_child: bool) -> None:
        """There may be a new run. While the server stops, only sub-agents of turns at work begin something."""
        if session_id in self._at_work:
            self._at_work[session_id][0].poke()
        elif not self._is_leaving and (is_child or not self._engine.is_stopping):
            actor = SessionActor(self._engine, workspace_id, session_id, is_child=is_child)
            task = asyncio.get_running_loop().create_task(self._run(actor))
            self._at_work[session_id] = (actor, task)

    def stop_run(self, session_id: str, run_id: str) -> None:
        if session_id in self._at_work:
            self._at_work[session_id][0].stop_run(run_id)

    async def end_sub_agents(self, workspace_id: str, run_id: str, patience_s: float) -> None:
        """Stop the turns that a run delegated to, and wait until they, and so their processes, have ended."""
        actors = [actor for actor, _ in self._at_work.values() if actor.workspace_id == workspace_id]
        if turns := [actor.end_turn() for actor in actors if actor.parent_run_id == run_id]:
            await asyncio.wait(turns, timeout=patience_s)

    async def leave(self, patience_s: float) -> None:
        """P15: every turn ends, and its run is left to the next server."""
        self._is_leaving = True
        for actor, _ in list(self._at_work.values()):
            actor.stop("shutdown")
        await wait_for_end(self.tasks, patience_s)

    async def _run(self, actor: SessionActor) -> None:
        try:
            await actor.work()
        except Exception:
            # A session must never stay busy because of our own mistake: another actor tries, up to the last attempt.
            log.exception("the actor of session %s failed", actor.session_id)
            self._engine.tasks.own(self._wake_later(actor))
        finally:
            del self._at_work[actor.session_id]

    async def _wake_later(self, failed: SessionActor) -> None:
        await asyncio.sleep(AGAIN_S)
        self.wake(failed.workspace_id, failed.session_id, is_child=failed.is_child)


class SessionActor:
    def __init__(self, engine: Engine, workspace_id: str, session_id: str, *, is_child: bool) -> None:
        self.workspace_id = workspace_id
        self.session_id = session_id
        self.active_run_id: str | None = None
        self.parent_run_id: str | None = None  # of the active run, if it is a sub-agent's
        self._engine = engine
        self.is_child = is_child
        self._has_news = True
        self._is_leaving = False
        self._stopped: set[str] = set()  # told to stop while we were still waiting to hear that they had started
        self._stop: asyncio.Future[Stop] | None = None
        self._over: asyncio.Future[None] = asyncio.get_running_loop().create_future()  # the active turn

    def poke(self) -> None:
        """There may be a new run."""
        self._has_news = True

    def stop(self, why: Stop) -> None:
        """End the active turn. Telling it twice does nothing. A shutdown also ends a turn that is being started."""
        self._is_leaving = self._is_leaving or why == "shutdown"
        if self._stop is not None and not self._stop.done():
            self._stop.set_result(why)

    def stop_run(self, run_id: str) -> None:
        """Stop this run's turn, if it is the active one or the one that is being started."""
        if self.active_run_id == run_id:
            self.stop("cancel")
        elif self.active_run_id is None:
            self._stopped.add(run_id)

    def end_turn(self) -> asyncio.Future[None]:
        """Stop the active turn; done when it is over."""
        self.stop("cancel")
        return self._over

    async def work(self) -> None:
        """Run turn after turn until nothing is open; then leave, without a gap in which a new run could be missed."""
        while self._has_news and self._may_start:
            self._has_news = False
            async with self._engine.slots.take(is_counted=not self.is_child) as slot:
                while self._may_start and await self._turn(slot):
                    await slot.acquire()  # a turn that was cancelled while it lend its slot left without it

    @property
    def _may_start(self) -> bool:
        """While the server stops, only sub-agents of turns that are still at work begin something."""
        return not self._is_leaving and (self.is_child or not self._engine.is_stopping)

    async def _turn(self, slot: TurnSlot) -> bool:
        started = await retry_store(lambda: self._engine.store.start(self.workspace_id, self.session_id))
        if started is None:
            return False
        failpoints.hit("turn.begin")
        self.active_run_id, self.parent_run_id = started.run.run_id, started.run.parent_run_id
        self._stop = asyncio.get_running_loop().create_future()
        self._over = asyncio.get_running_loop().create_future()
        if started.run.run_id in self._stopped:
            self.stop("cancel")
        elif self._is_leaving:
            self.stop("shutdown")
        self._stopped.clear()
        try:
            await self._work_on(started, slot, self._stop)
        finally:
            self.active_run_id = self.parent_run_id = None
            self._stop = None
            self._over.set_result(None)
        return True

    async def _work_on(self, started: Started, slot: TurnSlot, stop: asyncio.Future[Stop]) -> None:
        engine, claim = self._engine, started.claim
        turn_writer = TurnWriter(engine.store, engine.feed(claim.workspace_id), claim)
        ctx = TurnContext(engine, started, turn_writer, slot, engine.env_of(claim.workspace_id, claim.run_id))
        task = asyncio.create_task(_contained(engine.turns.get(started.run.kind), ctx))
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
            survivors = []  # whatever our own mistake was, the run must end
        failpoints.hit("turn.stopped")
        if not (stop.done() and stop.result() == "shutdown"):  # else the next server looks into it
            await engine.file_recorder.release(claim.workspace_id, claim.run_id)
        if is_over:
            await self._end(started, task.result())
        elif stop.done() and stop.result() == "shutdown":
            await retry_store(lambda: engine.store.suspend(claim))
        else:
            await self._end(started, Outcome("cancelled", survivors=tuple(survivors)))

    async def _wind_down(self, task: asyncio.Task[Outcome], ctx: TurnContext, turn_writer: TurnWriter) -> list[str]:
        """Take the turn's right to write, stop it and its processes, and go on in time whatever they do (P6)."""
        turn_writer.is_revoked = True
        term_s, kill_s = self._engine.term_s, self._engine.kill_s
        task.cancel()
        survivors, _, _ = await asyncio.gather(
            process_groups.end_groups(ctx.groups, term_s, kill_s),
            asyncio.wait({task}, timeout=term_s + kill_s),
            self._engine.actors.end_sub_agents(self.workspace_id, ctx.run.run_id, term_s + kill_s),
        )
        self._engine.user_groups.difference_update(ctx.groups)
        if not task.done():
            log.warning("the turn of run %s ignores its cancellation and was left behind", ctx.run.run_id)
            self._engine.tasks.adopt(task)  # it can write nothing any more
        await retry_store(turn_writer.close)
        return survivors

    async def _end(self, started: Started, outcome: Outcome) -> None:
        store, claim = self._engine.store, started.claim
        try:
            await retry_store(lambda: store.finish(claim, outcome))
        except Exception:
            # A session must never stay busy because of our own mistake: the plainest end is tried.
            log.exception("the end of run %s could not be written", claim.run_id)
            plain = Outcome("failed", "internal error: the end could not be written", "internal")
            await retry_store(lambda: store.finish(claim, plain))


async def _contained(turn: Turn | None, ctx: TurnContext) -> Outcome:
    """The boundary between the engine and an agent: whatever happens in there is an outcome of this run alone."""
    if turn is None:
        return _failed(f"this server cannot do runs of kind {ctx.run.kind!r}", "unsupported")
    try:
        await turn(ctx)
    except TurnFailed as error:
        return _failed(error.text, error.code)
    except ClaimLost:
        return Outcome("cancelled")
    except KedgeError as error:
        return _failed(error.message, error.code)
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        return _failed("the turn was cancelled from inside", "internal")
    except (KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:  # SystemExit too, and groups that hold one: a session must never stay busy
        log.exception("the turn of run %s failed", ctx.run.run_id)
        return _failed(f"internal error: {type(error).__name__}: {error}", "internal")
    return Outcome("completed")


def _failed(text: str, code: str) -> Outcome:
    """An error's text may hold anything; what is stored and sent must be valid Unicode."""
    return Outcome("failed", text.encode("utf-8", "replace").decode(), code)
