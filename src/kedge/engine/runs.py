"""Accepting runs and waiting for their ends, for clients by way of the `Engine` and for turns that delegate; and checks
of values that clients send."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from pathlib import Path

from kedge.engine.concurrency import Tasks, Waiters, retry_store
from kedge.feed.feeds import Feeds
from kedge.protocol.bounds import MAX_ENV_CHARS, MAX_TITLE_CHARS
from kedge.protocol.errors import Invalid, NotFound, ShuttingDown, TooLarge
from kedge.protocol.runs import OPEN_STATES, Receipt, RunEnd, Submission
from kedge.protocol.sessions import SessionChange
from kedge.protocol.validation import (
    check_attachments,
    check_command,
    check_model,
    check_options,
    check_prompt,
    check_run_id,
    check_text,
)
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
        self,
        workspace_id: str,
        submission: Submission,
        *,
        run_id: str | None = None,
        env: Mapping[str, str] | None = None,
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


def resolve_directory(path: Path) -> str:
    """Return the resolved path of an existing directory; raises `Invalid`."""
    check_text(str(path), "path")
    try:
        resolved = path.resolve()
        if resolved.is_dir():
            return str(resolved)
        why = "is not a directory"
    except (OSError, RuntimeError) as error:  # a name too long, a link to itself
        why = (error.strerror if isinstance(error, OSError) else None) or "cannot be resolved"
    raise Invalid("invalid_request", f"{str(path)[:200]} {why}; name an existing directory")


def check_title(title: str) -> None:
    check_text(title, "title")
    if len(title) > MAX_TITLE_CHARS:
        raise Invalid("invalid_request", f"the title is over {MAX_TITLE_CHARS} characters; shorten it")


def check_change(change: SessionChange) -> None:
    if isinstance(change.title, str):
        check_title(change.title)
    if isinstance(change.model, str):
        check_text(change.model, "model")
        check_model(change.model)


def check_submission(submission: Submission) -> None:
    if submission.model is not None:
        check_text(submission.model, "model")
        check_model(submission.model)
    if submission.kind == "shell":
        check_command(submission.prompt)
    elif submission.kind != "summarize":
        check_prompt(submission.prompt, submission.attachments)
    check_attachments(submission.attachments)
    check_options(submission.options)


def check_env(env: Mapping[str, str] | None) -> None:
    if env is not None and sum(len(name) + len(value) for name, value in env.items()) > MAX_ENV_CHARS:
        raise TooLarge("env_too_large", f"the environment has over {MAX_ENV_CHARS >> 20} Mi characters; send less")
