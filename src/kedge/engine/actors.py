"""The sessions at work: an actor and a task for each that has open runs, woken by what is committed."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from kedge.engine.actor import SessionActor
from kedge.engine.tasks import wait_for_end

if TYPE_CHECKING:
    from kedge.engine.engine import Engine

log = logging.getLogger(__name__)

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
