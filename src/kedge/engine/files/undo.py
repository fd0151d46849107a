"""Undo, redo and fork: files and conversation together, all or nothing, also under `kill -9`.

What is meant is in the store before a file is touched, and what was said goes with the transaction at the end. Between
the two a server that dies leaves it to the next one, which goes on, or takes it back where it cannot.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sqlite3
from collections.abc import Coroutine, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from kedge import failpoints
from kedge.engine.concurrency import retry_store
from kedge.files import restore, restore_plan
from kedge.files.restore import ChangedMeanwhile, Step
from kedge.files.restore_plan import Change, Plan, Target, reverse_steps
from kedge.files.states import decode_state, observe_below
from kedge.protocol.errors import NotFound, SessionBusy, Unavailable
from kedge.protocol.files import FilesConflict, FileStep, NothingToRedo, Obstacle, Rewound
from kedge.protocol.messages import whole_characters
from kedge.protocol.sessions import Session
from kedge.store.files_port import Cut, RecordedChange, Undo

if TYPE_CHECKING:
    from kedge.engine.engine import Engine

log = logging.getLogger(__name__)

_NAMED = 5  # files, in a line that says what is in the way
_WORDS: dict[Obstacle, str] = {
    "changed": "changed by somebody else",
    "in_the_way": "something else has its place",
    "too_large": "too large to be kept",
    "special": "not a file that is kept",
    "not_kept": "no longer kept",
    "background_job": "changed by a background job, or by you",
    "interrupted": "changed around a crash, by the command or by you",
}


class _How(NamedTuple):
    is_dry: bool
    force: bool
    include_unsure: bool


class UndoManager:
    """What was begun goes on when the caller leaves."""

    def __init__(self, engine: Engine) -> None:
        self.at_work: set[asyncio.Task[Rewound]] = set()
        self._store = engine.store
        self._recorder = engine.file_recorder
        self._root_of = engine.root_of
        self._tasks = engine.tasks
        self._engine = engine

    async def undo(
        self,
        workspace_id: str,
        session_id: str,
        message_id: str | None = None,
        *,
        dry_run: bool = False,
        force: bool = False,
        include_unsure: bool = False,
    ) -> Rewound:
        """Back to before a message: by default the last one that a person sent.

        `include_unsure`: also undo what may be the user's own work, changed while a job ran or around a crash.
        """
        self._check(workspace_id)
        how = _How(is_dry=dry_run, force=force, include_unsure=include_unsure)
        return await self._begun(self._undo(workspace_id, session_id, message_id, how))

    async def redo(self, workspace_id: str, session_id: str, *, dry_run: bool = False) -> Rewound:
        """Take back the last undo. It never overwrites: what was done since the undo is nowhere else."""
        self._check(workspace_id)
        return await self._begun(self._redo(workspace_id, session_id, dry_run=dry_run))

    async def fork(
        self,
        workspace_id: str,
        session_id: str,
        message_id: str | None = None,
        *,
        with_files: bool = False,
        dry_run: bool = False,
        force: bool = False,
        include_unsure: bool = False,
    ) -> Rewound:
        """A new session that goes on after a message; with its files, those are as they were there."""
        self._check(workspace_id)
        how = _How(is_dry=dry_run, force=force, include_unsure=include_unsure)
        return await self._begun(self._fork(workspace_id, session_id, message_id, how, with_files=with_files))

    async def wait_for_all(self) -> None:
        """Wait for the undos, redos and forks that are at work now, whatever becomes of them."""
        if self.at_work:
            await asyncio.wait(set(self.at_work))

    def _check(self, workspace_id: str) -> None:
        self._engine.feed(workspace_id)
        self._engine.check_accepting()

    def _begun(self, work: Coroutine[Any, Any, Rewound]) -> asyncio.Future[Rewound]:
        task = self._tasks.own(work)
        self.at_work.add(task)
        task.add_done_callback(self.at_work.discard)
        return asyncio.shield(task)

    async def recover(self) -> None:
        """P13, for files: what a dead server began is done, or taken back where it cannot be done."""
        for undo in await self._store.files.unfinished_undos():
            with contextlib.suppress(NotFound):  # its workspace is gone, and so will it be
                await self._recover(undo)

    async def _recover(self, undo: Undo) -> None:
        steps = restore_plan.decode_steps(undo.plan)
        forward = reverse_steps(steps) if undo.state == "redoing" else steps
        stop, mark = os.fsencode(self._root_of(undo.workspace_id)), _mark(undo.id)
        try:
            await asyncio.to_thread(self._restore_rest, forward, mark, stop)
            await self._store.files.finish_undo(undo.id, undo.plan)
        except (OSError, sqlite3.Error) as error:
            log.warning("undo %d cannot be finished (%s), and is taken back", undo.id, error)
            await self._taken_back(undo.workspace_id, undo.id, forward)

    async def _undo(self, workspace_id: str, session_id: str, message_id: str | None, how: _How) -> Rewound:
        async with self._recorder.alone(workspace_id):
            await self._check_idle(workspace_id, session_id)
            await self._recorder.settle_alone(workspace_id)
            cut = await self._store.files.cut_before(workspace_id, session_id, message_id)
            return await self._back(workspace_id, session_id, cut, None, how)

    async def _fork(
        self, workspace_id: str, session_id: str, message_id: str | None, how: _How, *, with_files: bool
    ) -> Rewound:
        files = self._store.files
        if not with_files:
            cut = await files.cut_after(workspace_id, session_id, message_id)
            if how.is_dry:
                return _rewound(await self._store.session(workspace_id, session_id), None, [], is_dry=True)
            session = await files.fork(workspace_id, session_id, cut.message_id)
            return _rewound(session, None, [])
        async with self._recorder.alone(workspace_id):
            await self._check_idle(workspace_id, session_id)
            await self._recorder.settle_alone(workspace_id)
            cut = await files.cut_after(workspace_id, session_id, message_id)
            return await self._back(workspace_id, session_id, cut, cut.message_id, how)

    async def _redo(self, workspace_id: str, session_id: str, *, dry_run: bool) -> Rewound:
        async with self._recorder.alone(workspace_id):
            await self._check_idle(workspace_id, session_id)
            await self._recorder.settle_alone(workspace_id)
            undo = await self._store.files.last_undo(workspace_id, session_id)
            if undo is None:
                raise NothingToRedo
            targets = [Target(step.path, step.then, step.now) for step in restore_plan.decode_steps(undo.plan)]
            plan = await self._planned(workspace_id, targets, stores_current=False)
            told = self._told(workspace_id, plan)
            if dry_run:
                return _rewound(await self._store.session(workspace_id, session_id), None, told, is_dry=True)
            if plan.has_obstacles:
                raise FilesConflict(_refusal(told, "put them elsewhere, then redo"), told)
            await retry_store(lambda: self._store.files.begin_redo(workspace_id, session_id, undo.id))
            session = await self._carried_out(workspace_id, undo.id, plan.list_steps(), undo.plan)
            return _rewound(session, None, told)

    async def _back(self, workspace_id: str, session_id: str, cut: Cut, fork_after: str | None, how: _How) -> Rewound:
        files = self._store.files
        await self._recorder.look_for_jobs(workspace_id)
        changes = map(_states, await files.changes(workspace_id, session_id, cut.seq, with_unsure=True))
        targets = restore_plan.find_targets(changes, include_unsure=how.include_unsure)
        plan = await self._planned(workspace_id, targets, stores_current=not how.is_dry)
        told = self._told(workspace_id, plan)
        notes = [
            f"{why}; what its commands changed stays"
            for why in await files.unwatched(workspace_id, session_id, cut.seq)
        ]
        if how.is_dry:
            session = await self._store.session(workspace_id, session_id)
            return _rewound(session, cut.prompt, told, notes, is_dry=True)
        if plan.has_obstacles and not how.force:
            raise FilesConflict(_refusal(told, "force overwrites what was changed, and leaves the rest alone"), told)
        steps = plan.list_steps()
        encoded = restore_plan.encode_steps(steps)
        undo_id = await retry_store(lambda: files.begin_undo(workspace_id, session_id, cut, encoded, fork_after))
        session = await self._carried_out(workspace_id, undo_id, steps, encoded)
        return _rewound(session, cut.prompt, told, notes)

    async def _carried_out(self, workspace_id: str, undo_id: int, steps: Sequence[Step], plan: bytes) -> Session:
        failpoints.hit("undo.begun")
        try:
            stop = os.fsencode(self._root_of(workspace_id))
            await asyncio.to_thread(restore.restore_all, steps, self._recorder.versions.blobs.get, _mark(undo_id), stop)
        except (OSError, sqlite3.Error, ChangedMeanwhile) as error:
            is_whole = await self._taken_back(workspace_id, undo_id, steps)
            why = f"{error} was changed meanwhile" if isinstance(error, ChangedMeanwhile) else str(error)
            rest = "nothing changed" if is_whole else "some were, and the next start of the server goes on with it"
            raise Unavailable("files_unavailable", f"the files could not be restored ({why}); {rest}") from error
        failpoints.hit("undo.restored")
        await asyncio.to_thread(self._noted, steps, stop)
        return await retry_store(lambda: self._store.files.finish_undo(undo_id, plan))

    async def _taken_back(self, workspace_id: str, undo_id: int, steps: Sequence[Step]) -> bool:
        stop = os.fsencode(self._root_of(workspace_id))
        try:
            await asyncio.to_thread(self._restore_rest, reverse_steps(steps), _mark(undo_id), stop)
        except (OSError, sqlite3.Error):
            log.exception("undo %d could not be taken back; the next start tries it again", undo_id)
            return False
        await retry_store(lambda: self._store.files.abandon_undo(undo_id))
        return True

    def _noted(self, steps: Sequence[Step], root: bytes) -> None:
        """A command of another session that is at work must not be taken for who restored them. In a thread."""
        with contextlib.suppress(sqlite3.Error):  # it would be said to be that one's, which the content decides
            for step in steps:
                self._recorder.versions.trees.record(root, step.path, observe_below(root, step.path))
            self._recorder.versions.trees.save(root)  # nor by the server that comes after a crash

    def _restore_rest(self, steps: Sequence[Step], mark: str, stop: bytes) -> None:
        """Whatever state each path is in; one that somebody changed meanwhile is theirs."""
        for step in restore.sort_steps(steps):
            try:
                restore.restore(step, self._recorder.versions.blobs.get, mark, stop)
            except ChangedMeanwhile:
                log.warning("%r was changed meanwhile, and stays as it is", step.path)

    async def _planned(self, workspace_id: str, targets: Sequence[Target], *, stores_current: bool) -> Plan:
        root, blobs = os.fsencode(self._root_of(workspace_id)), self._recorder.versions.blobs
        try:
            return await asyncio.to_thread(restore_plan.make_plan, targets, blobs, root, stores_current=stores_current)
        except (OSError, sqlite3.Error) as error:
            raise Unavailable("files_unavailable", f"the files cannot be read ({error}); nothing changed") from error

    async def _check_idle(self, workspace_id: str, session_id: str) -> None:
        """Said before anything else; the transaction that begins it decides."""
        status = await self._store.session_status(workspace_id, session_id)
        if status.is_busy:
            raise SessionBusy(status.active.run_id if status.active else status.queue[0].run_id)

    def _told(self, workspace_id: str, plan: Plan) -> list[FileStep]:
        prefix = os.fsencode(self._root_of(workspace_id)) + b"/"
        return [
            FileStep(
                path=whole_characters(os.fsdecode(step.path.removeprefix(prefix))),
                status=restore_plan.get_status(step.now, step.then),
                obstacle=obstacle,
            )
            for step, obstacle in sorted(plan.steps, key=lambda each: each.step.path)
            if restore_plan.blocks_restore(obstacle) or not restore_plan.is_empty_directory_change(step.now, step.then)
        ]


def _rewound(
    session: Session, prompt: str | None, files: list[FileStep], notes: Sequence[str] = (), *, is_dry: bool = False
) -> Rewound:
    fields = {name: getattr(session, name) for name in Session.__struct_fields__}  # it may have others
    return Rewound(**fields, files=files, notes=list(notes), dry_run=is_dry, prompt=prompt)


def _states(change: RecordedChange) -> Change:
    return Change(change.path, decode_state(change.before), decode_state(change.after), change.unsure)


def _mark(undo_id: int) -> str:
    return f"undo-{undo_id}"


def _refusal(files: Sequence[FileStep], advice: str) -> str:
    blocked = [file for file in files if restore_plan.blocks_restore(file.obstacle)]
    named = ", ".join(f"{file.path} ({_WORDS[file.obstacle]})" for file in blocked[:_NAMED] if file.obstacle)
    rest = f" and {len(blocked) - _NAMED} more" if len(blocked) > _NAMED else ""
    return f"nothing was touched, because of {named}{rest}; {advice}"
