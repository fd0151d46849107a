"""Undo, redo and fork: files and conversation together, all or nothing, also under `kill -9`.

The plan is stored before a file is touched; the last transaction hides or restores the messages. If the server dies
between the two, the next one finishes the work, or reverts it where it cannot.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sqlite3
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from kedge import failpoints
from kedge.engine.concurrency import Tasks, retry_store
from kedge.engine.files.recorder import FileRecorder
from kedge.files import restore
from kedge.files.restore import Change, ChangedMeanwhile, Plan, PlannedStep, Step, Target, reverse_steps
from kedge.files.states import decode_state, observe_below
from kedge.protocol.errors import Conflict, KedgeError, NotFound, SessionBusy, Unavailable
from kedge.protocol.files import FilesConflict, FileStep, NothingToRedo, Restore, Rewound
from kedge.protocol.messages import replace_surrogates
from kedge.protocol.obstacles import describe_obstacle
from kedge.protocol.sessions import Session
from kedge.store.port import Cut, NewUndo, RecordedChange, Reverts, Store, Undo

log = logging.getLogger(__name__)

_MAX_NAMED = 5  # files in an error message


class _Options(NamedTuple):
    is_dry: bool
    force: bool
    include_unsure: bool
    restore: Restore = "both"

    @property
    def reverts(self) -> Reverts:
        """Which changes count as undone. Of files alone, those that are left can be undone later."""
        if self.restore == "conversation":
            return "none"
        return "sure" if self.restore == "files" and not self.include_unsure else "all"


class UndoManager:
    """An undo, redo or fork that has started continues if its caller is canceled."""

    def __init__(
        self,
        store: Store,
        recorder: FileRecorder,
        root_of: Callable[[str], Path],
        tasks: Tasks,
        check_accepting: Callable[[], None],
    ) -> None:
        self.running: set[asyncio.Task[Rewound]] = set()
        self._store = store
        self._recorder = recorder
        self._root_of = root_of
        self._tasks = tasks
        self._check_accepting = check_accepting

    async def undo(
        self,
        workspace_id: str,
        session_id: str,
        message_id: str | None = None,
        *,
        restore: Restore = "both",
        dry_run: bool = False,
        force: bool = False,
        include_unsure: bool = False,
    ) -> Rewound:
        """Restore files and conversation as they were before a message: by default the last one of a user.

        `restore`: only files, or only the conversation. `include_unsure`: also undo changes that may be the user's
        own, made while a job ran or around a crash.
        """
        options = _Options(is_dry=dry_run, force=force, include_unsure=include_unsure, restore=restore)
        return await self._start(workspace_id, self._undo(workspace_id, session_id, message_id, options))

    async def redo(self, workspace_id: str, session_id: str, *, dry_run: bool = False) -> Rewound:
        """Revert the last undo. It never overwrites changes made since: there is no other copy of them."""
        return await self._start(workspace_id, self._redo(workspace_id, session_id, dry_run=dry_run))

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
        """Create a session with the messages up to one; `with_files` also restores the files as they were then."""
        options = _Options(is_dry=dry_run, force=force, include_unsure=include_unsure)
        return await self._start(
            workspace_id, self._fork(workspace_id, session_id, message_id, options, with_files=with_files)
        )

    async def wait_for_all(self) -> None:
        """Wait until the undos, redos and forks that run now have ended in any way."""
        if self.running:
            await asyncio.wait(set(self.running))

    def _start(self, workspace_id: str, work: Coroutine[Any, Any, Rewound]) -> asyncio.Future[Rewound]:
        try:
            self._root_of(workspace_id)  # raises NotFound
            self._check_accepting()
        except KedgeError:
            work.close()
            raise
        task = self._tasks.start(work)
        self.running.add(task)
        task.add_done_callback(self.running.discard)
        return asyncio.shield(task)

    async def recover(self) -> None:
        """Finish the undos and redos that a dead server began; revert those that cannot be finished (P13)."""
        for undo in await self._store.files.unfinished_undos():
            with contextlib.suppress(NotFound):  # its workspace was deleted
                await self._recover(undo)

    async def _recover(self, undo: Undo) -> None:
        steps = restore.decode_steps(undo.plan)
        forward = reverse_steps(steps) if undo.state == "redoing" else steps
        stop, mark = os.fsencode(self._root_of(undo.workspace_id)), _mark(undo.id)
        try:
            await asyncio.to_thread(self._restore_rest, forward, mark, stop)
            await self._store.files.finish_undo(undo.id, undo.plan)
        except (OSError, sqlite3.Error) as error:
            log.warning("undo %d cannot be finished (%s), and is reverted", undo.id, error)
            await self._revert(undo.workspace_id, undo.id, forward)

    async def _undo(self, workspace_id: str, session_id: str, message_id: str | None, options: _Options) -> Rewound:
        async with self._recorder.lock(workspace_id):
            await self._check_idle(workspace_id, session_id)
            await self._recorder.settle_locked(workspace_id)
            cut = await self._store.files.cut_before(workspace_id, session_id, message_id)
            return await self._restore(workspace_id, session_id, cut, None, options)

    async def _fork(
        self, workspace_id: str, session_id: str, message_id: str | None, options: _Options, *, with_files: bool
    ) -> Rewound:
        files = self._store.files
        if not with_files:
            cut = await files.cut_after(workspace_id, session_id, message_id)
            if options.is_dry:
                return _make_result(await self._store.session(workspace_id, session_id), None, [], is_dry=True)
            session = await files.fork(workspace_id, session_id, cut.message_id)
            return _make_result(session, None, [])
        async with self._recorder.lock(workspace_id):
            await self._check_idle(workspace_id, session_id)
            await self._recorder.settle_locked(workspace_id)
            cut = await files.cut_after(workspace_id, session_id, message_id)
            return await self._restore(workspace_id, session_id, cut, cut.message_id, options)

    async def _redo(self, workspace_id: str, session_id: str, *, dry_run: bool) -> Rewound:
        async with self._recorder.lock(workspace_id):
            await self._check_idle(workspace_id, session_id)
            await self._recorder.settle_locked(workspace_id)
            undo = await self._store.files.last_undo(workspace_id, session_id)
            if undo is None:
                raise NothingToRedo
            targets = [Target(step.path, step.then, step.now) for step in restore.decode_steps(undo.plan)]
            plan = await self._plan(workspace_id, targets, stores_current=False)
            file_steps = await self._describe(workspace_id, plan)
            if dry_run:
                return _make_result(await self._store.session(workspace_id, session_id), None, file_steps, is_dry=True)
            if plan.has_obstacles:
                raise FilesConflict(_describe_conflict(file_steps, "put them elsewhere, then redo"), file_steps)
            await retry_store(lambda: self._store.files.begin_redo(workspace_id, session_id, undo.id))
            session = await self._carry_out(workspace_id, undo.id, plan.list_steps(), undo.plan)
            return _make_result(session, None, file_steps)

    async def _restore(
        self, workspace_id: str, session_id: str, cut: Cut, fork_after: str | None, options: _Options
    ) -> Rewound:
        files = self._store.files
        plan, notes = Plan([]), list[str]()
        if options.restore != "conversation":
            plan, notes = await self._plan_undo(workspace_id, session_id, cut, options)
        file_steps = await self._describe(workspace_id, plan)
        if options.is_dry:
            session = await self._store.session(workspace_id, session_id)
            return _make_result(session, cut.prompt, file_steps, notes, is_dry=True)
        if plan.has_obstacles and not options.force:
            raise FilesConflict(
                _describe_conflict(file_steps, "force overwrites what was changed, and leaves the rest alone"),
                file_steps,
            )
        steps = plan.list_steps()
        if options.restore == "files" and not steps:
            raise Conflict("nothing_to_undo", "no file would be restored, so nothing was done")
        encoded = restore.encode_steps(steps)
        hides = fork_after is None and options.restore != "files"
        undo = NewUndo(cut=cut, plan=encoded, hides=hides, reverts=options.reverts, fork_after=fork_after)
        undo_id = await retry_store(lambda: files.begin_undo(workspace_id, session_id, undo))
        session = await self._carry_out(workspace_id, undo_id, steps, encoded)
        return _make_result(session, cut.prompt, file_steps, notes)

    async def _plan_undo(
        self, workspace_id: str, session_id: str, cut: Cut, options: _Options
    ) -> tuple[Plan, list[str]]:
        """Return the plan that restores the files as they were at the cut, and notes on what it cannot restore."""
        files = self._store.files
        await self._recorder.record_job_changes(workspace_id)
        changes = map(_decode_change, await files.changes(workspace_id, session_id, cut.seq, with_unsure=True))
        targets = restore.find_targets(changes, include_unsure=options.include_unsure)
        plan = await self._plan(workspace_id, targets, stores_current=not options.is_dry)
        reasons = await files.unwatched_reasons(workspace_id, session_id, cut.seq)
        return plan, [f"{why}; what its commands changed stays" for why in reasons]

    async def _carry_out(self, workspace_id: str, undo_id: int, steps: Sequence[Step], plan: bytes) -> Session:
        failpoints.hit("undo.begun")
        try:
            stop = os.fsencode(self._root_of(workspace_id))
            await asyncio.to_thread(restore.restore_all, steps, self._recorder.versions.blobs.get, _mark(undo_id), stop)
        except (OSError, sqlite3.Error, ChangedMeanwhile) as error:
            is_whole = await self._revert(workspace_id, undo_id, steps)
            why = f"{error} was changed meanwhile" if isinstance(error, ChangedMeanwhile) else str(error)
            rest = "nothing changed" if is_whole else "some were, and the next start of the server goes on with it"
            raise Unavailable("files_unavailable", f"the files could not be restored ({why}); {rest}") from error
        failpoints.hit("undo.restored")
        await asyncio.to_thread(self._note_restored, steps, stop)
        return await retry_store(lambda: self._store.files.finish_undo(undo_id, plan))

    async def _revert(self, workspace_id: str, undo_id: int, steps: Sequence[Step]) -> bool:
        stop = os.fsencode(self._root_of(workspace_id))
        try:
            await asyncio.to_thread(self._restore_rest, reverse_steps(steps), _mark(undo_id), stop)
        except (OSError, sqlite3.Error):
            log.exception("undo %d could not be reverted; the next start tries again", undo_id)
            return False
        await retry_store(lambda: self._store.files.abandon_undo(undo_id))
        return True

    def _note_restored(self, steps: Sequence[Step], root: bytes) -> None:
        """Add the restored files to the last scan, so that they do not count as another session's command's. Blocks."""
        with contextlib.suppress(sqlite3.Error):  # then they count as that command's, and its undo compares contents
            for step in steps:
                self._recorder.versions.trees.record(root, step.path, observe_below(root, step.path))
            self._recorder.versions.trees.save(root)  # also for the next server, after a crash

    def _restore_rest(self, steps: Sequence[Step], mark: str, stop: bytes) -> None:
        """Restore paths in any state; one that was changed meanwhile is left as it is. Blocks."""
        for step in restore.sort_steps(steps):
            try:
                restore.restore(step, self._recorder.versions.blobs.get, mark, stop)
            except ChangedMeanwhile:
                log.warning("%r was changed meanwhile and is left as it is", step.path)

    async def _plan(self, workspace_id: str, targets: Sequence[Target], *, stores_current: bool) -> Plan:
        root, blobs = os.fsencode(self._root_of(workspace_id)), self._recorder.versions.blobs
        try:
            return await asyncio.to_thread(restore.make_plan, targets, blobs, root, stores_current=stores_current)
        except (OSError, sqlite3.Error) as error:
            raise Unavailable("files_unavailable", f"the files cannot be read ({error}); nothing changed") from error

    async def _check_idle(self, workspace_id: str, session_id: str) -> None:
        """Raise `SessionBusy` early; the first transaction checks it again and decides."""
        status = await self._store.session_status(workspace_id, session_id)
        if status.is_busy:
            raise SessionBusy(status.active.run_id if status.active else status.queue[0].run_id)

    async def _describe(self, workspace_id: str, plan: Plan) -> list[FileStep]:
        prefix = os.fsencode(self._root_of(workspace_id)) + b"/"
        shown = [
            planned
            for planned in sorted(plan.steps, key=lambda each: each.step.path)
            if restore.blocks_restore(planned.obstacle)
            or not restore.is_empty_directory_change(planned.step.now, planned.step.then)
        ]
        return await asyncio.to_thread(self._describe_steps, shown, prefix) if shown else []

    def _describe_steps(self, shown: Sequence[PlannedStep], prefix: bytes) -> list[FileStep]:
        """Blocks: counts lines."""
        from kedge.files.diffs import count_lines  # imports difflib, which would slow the server's start

        blobs = self._recorder.versions.blobs
        steps: list[FileStep] = []
        for step, obstacle in shown:
            counts: tuple[int | None, int | None] = (None, None)
            if obstacle is None:  # else it stays, or its present content may not be stored
                with contextlib.suppress(sqlite3.Error):  # only shown to people
                    counts = count_lines(step.now, step.then, blobs)
            name = replace_surrogates(os.fsdecode(step.path.removeprefix(prefix)))
            status = restore.get_status(step.now, step.then)
            steps.append(FileStep(path=name, status=status, obstacle=obstacle, added=counts[0], removed=counts[1]))
        return steps


def _make_result(
    session: Session, prompt: str | None, files: list[FileStep], notes: Sequence[str] = (), *, is_dry: bool = False
) -> Rewound:
    fields = {name: getattr(session, name) for name in Session.__struct_fields__}  # `session` may be of a subclass
    return Rewound(**fields, files=files, notes=list(notes), dry_run=is_dry, prompt=prompt)


def _decode_change(change: RecordedChange) -> Change:
    return Change(change.path, decode_state(change.before), decode_state(change.after), change.unsure)


def _mark(undo_id: int) -> str:
    return f"undo-{undo_id}"


def _describe_conflict(files: Sequence[FileStep], advice: str) -> str:
    blocked = [file for file in files if restore.blocks_restore(file.obstacle)]
    named = ", ".join(
        f"{file.path} ({describe_obstacle(file.obstacle)})" for file in blocked[:_MAX_NAMED] if file.obstacle
    )
    rest = f" and {len(blocked) - _MAX_NAMED} more" if len(blocked) > _MAX_NAMED else ""
    return f"nothing was touched, because of {named}{rest}; {advice}"
