"""Sends prompts: in order, each exactly once; one that no server took is back in the editor."""

from __future__ import annotations

import asyncio
import hashlib
from typing import TYPE_CHECKING

from kedge.client.errors import ClientError, Refused
from kedge.protocol.runs import Mode, OnBusy, Run
from kedge.protocol.text_safety import provisional_title
from kedge.tui.editor.draft import Draft
from kedge.tui.mcp import ResourceRejected

if TYPE_CHECKING:
    from kedge.tui.port import Chat


class PromptSender:
    """Submits prompts in order, each exactly once (P3); a failed one goes back into the editor."""

    def __init__(self, screen: Chat) -> None:
        self._screen = screen
        self._order = asyncio.Lock()  # one submission at a time
        self._unconfirmed: dict[str, Draft] = {}  # not confirmed yet, by run id
        self._on_busy: dict[str, OnBusy] = {}  # with which they were sent
        self._complete: dict[str, Draft] = {}  # with the resources of MCP servers that they name

    async def promote(self, session_id: str, run_id: str, on_busy: OnBusy) -> None:
        """Send a queued prompt into the running turn, or interrupt that with it."""
        try:
            await self._screen.api.promote(session_id, run_id, on_busy)
        except ClientError as error:
            self._screen.hint(str(error))

    async def send(self, draft: Draft, mode: Mode | None = None, on_busy: OnBusy = "queue") -> None:
        """Submit a draft; put it back into the editor if it fails."""
        from kedge.client.environment import new_run_id

        screen = self._screen
        again = next((run_id for run_id, sent in self._unconfirmed.items() if sent == draft), None)
        run_id = again or new_run_id()
        self._unconfirmed[run_id] = draft
        sent_on_busy = self._on_busy.setdefault(run_id, on_busy)  # the same body again (P3)
        is_typed = draft in screen.editor.outbox.drafts  # else it is the prompt of a custom command
        screen.sync.retry()
        try:
            async with self._order:
                if run_id not in self._complete:  # read once: the same body again (P3)
                    self._complete[run_id] = await screen.mcp.attach_resources(draft)
                await self._submit(self._complete[run_id], run_id, mode, sent_on_busy)
        except ResourceRejected as error:
            self._forget(run_id)
            self._put_back(draft, is_typed=is_typed)
            screen.hint(f"Not sent: {error}")
            return
        except Refused as error:
            if error.code == "run_id_conflict":  # an earlier attempt arrived, with another mode or session
                self._confirm(run_id)
                screen.hint("This prompt was already sent")
                return
            self._forget(run_id)
            self._put_back(draft, is_typed=is_typed)
            screen.hint(f"Not sent: {error}")
            return
        except ClientError as error:
            if run_id in self._unconfirmed:
                self._put_back(draft, is_typed=is_typed)
                screen.hint(f"Not sent: {error}. Press Enter to retry.")
            return
        self._confirm(run_id)
        screen.hint("")
        if on_busy != sent_on_busy and on_busy != "queue" and screen.session_id is not None:
            await self.promote(screen.session_id, run_id, on_busy)
        screen.transcript.scroll_end(animate=False)

    async def answer_plan(self, plan: Run, mode: Mode, remark: str) -> bool:
        """Send the prompt that follows a plan; return whether one was sent. All clients give it the same run id."""
        from kedge.tui.dialogs.plan import GO_ON_PROMPT

        screen, session = self._screen, self._screen.session
        # What was undone does not count: after an undo the same plan can be answered again.
        undone = len(session.undone_runs) if session else 0
        digest = hashlib.sha256(f"{plan.session_id}/{plan.run_id}/{undone}".encode()).hexdigest()
        try:
            await screen.api.submit(
                plan.session_id,
                remark or GO_ON_PROMPT,
                run_id=f"after-plan-{digest[:32]}",
                mode=mode,
                model=screen.interface.launch.model,
            )
        except Refused as error:
            is_answered = error.code == "run_id_conflict"
            screen.hint("This plan was already answered in another window" if is_answered else f"Not sent: {error}")
            return is_answered
        except ClientError as error:
            screen.hint(f"Not sent: {error}")
            return False
        return True

    def settle(self) -> None:
        """Confirm prompts whose receipt was lost but whose run is known by now."""
        session = self._screen.session
        runs = session.runs if session else {}
        for run_id in [each for each in self._unconfirmed if each in self._screen.workspace.runs or each in runs]:
            self._confirm(run_id)

    async def _submit(self, draft: Draft, run_id: str, mode: Mode | None, on_busy: OnBusy) -> None:
        screen, api = self._screen, self._screen.api
        if screen.session_id is None:
            # A shell command makes a poor title; the first prompt makes the title then.
            title = provisional_title(draft.text) if draft.kind == "prompt" else ""
            session_id = (await api.create_session(title)).id
            await screen.sync.open_session(session_id)
            screen.session_id = session_id
        if draft.kind == "shell":
            await api.shell(screen.session_id, draft.text, run_id=run_id, on_busy=on_busy)
            return
        active = screen.session.active if screen.session else None
        if mode is None:  # a prompt joins only a turn in its own mode
            mode = active.mode if active is not None and on_busy == "steer" else screen.mode
        await api.submit(
            screen.session_id,
            draft.text,
            run_id=run_id,
            attachments=draft.attachments,
            mode=mode,
            on_busy=on_busy,
            model=screen.interface.launch.model,
        )

    def _forget(self, run_id: str) -> None:
        self._unconfirmed.pop(run_id, None)
        self._on_busy.pop(run_id, None)
        self._complete.pop(run_id, None)

    def _confirm(self, run_id: str) -> None:
        self._on_busy.pop(run_id, None)
        self._complete.pop(run_id, None)
        if (draft := self._unconfirmed.pop(run_id, None)) is not None:
            self._screen.editor.confirm_sent(draft)

    def _put_back(self, draft: Draft, *, is_typed: bool) -> None:
        if is_typed:
            self._screen.editor.put_back_unsent(draft)
        else:
            self._screen.editor.put_back_prompt(draft.text, draft.attachments)
