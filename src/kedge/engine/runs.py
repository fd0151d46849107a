"""Accepting runs and waiting for their ends: for clients by way of the `Engine`, and for turns that delegate."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping

from kedge.engine.concurrency import Tasks, Waiters, retry_store
from kedge.engine.validation import check_env, check_submission
from kedge.feed.feeds import Feeds
from kedge.protocol.errors import NotFound, ShuttingDown
from kedge.protocol.runs import OPEN_STATES, Receipt, RunEnd, Submission
from kedge.protocol.validation import check_run_id
from kedge.store.port import Store


class Runs:
    def __init__(self, store: Store, feeds: Feeds, tasks: Tasks, new_id: Callable[[], str]) -> None:
        self.is_stopping = False  # nothing more is accepted
        self.new_id = new_id
        self.env: dict[tuple[str, str], Mapping[str, str]] = {}  # by workspace and run: variables of open runs
        self.ends: Waiters[tuple[str, str], RunEnd] = Waiters()
        self._store = store
        self._feeds = feeds
        self._tasks = tasks
        self._accepting = Tasks()  # a server that stops still answers their callers (P1)

    def check_accepting(self) -> None:
        if self.is_stopping:
            raise ShuttingDown

    async def accept(
        self, workspace_id: str, submission: Submission, *, run_id: str | None, env: Mapping[str, str] | None
    ) -> Receipt:
        """Store a run. When this returns the run is durable; when it raises a `KedgeError` there is none (P1)."""
        if submission.parent_run_id is None:  # sub-agents are accepted while their parent may still run
            self.check_accepting()
        if run_id is None:
            run_id = self.new_id()
        check_run_id(run_id)
        check_submission(submission)
        self._feeds.require(workspace_id)
        check_env(env)
        if env is None:
            return await self._store.accept(workspace_id, run_id, submission)
        # Continues if the caller is canceled: the variables of a run that is refused or over must be dropped.
        return await asyncio.shield(self._accepting.start(self._accept_with_env(workspace_id, run_id, submission, env)))

    async def finish_accepting(self, timeout_s: float) -> None:
        await self._accepting.wait(timeout_s)

    async def wait_end(self, workspace_id: str, run_id: str) -> RunEnd:
        with self.ends.waiter((workspace_id, run_id)) as waiter:
            return await self._store.run_end(workspace_id, run_id) or await waiter

    def apply_end(self, workspace_id: str, end: RunEnd) -> None:
        """Drop the variables of an ended run and resolve those that wait for its end."""
        key = (workspace_id, end.run_id)
        self.env.pop(key, None)
        self.ends.resolve(key, end)

    def cancel_soon(self, workspace_id: str, run_id: str) -> None:
        self._tasks.start(self._cancel_if_there(workspace_id, run_id))

    async def _cancel_if_there(self, workspace_id: str, run_id: str) -> None:
        with contextlib.suppress(NotFound):
            await retry_store(lambda: self._store.cancel_run(workspace_id, run_id))

    async def _accept_with_env(
        self, workspace_id: str, run_id: str, submission: Submission, env: Mapping[str, str]
    ) -> Receipt:
        """Set the variables before the commit, because the run may start before `accept` returns."""
        key = (workspace_id, run_id)
        is_first = self.env.setdefault(key, env) is env
        is_open = False
        try:
            receipt = await self._store.accept(workspace_id, run_id, submission)
            is_open = receipt.state in OPEN_STATES
        finally:
            if is_first and not is_open:
                self.env.pop(key, None)
        return receipt
