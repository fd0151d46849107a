"""Prompts on their way: in the order of Enter, into one session, each once (P3).

What was not taken is back in the editor.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from kedge.client.errors import ClientError, Refused
from kedge.protocol.formats import provisional_title

if TYPE_CHECKING:
    from kedge.tui.editor.draft import Draft
    from kedge.tui.port import Chat


class PromptSender:
    def __init__(self, screen: Chat) -> None:
        self._screen = screen
        self._turn = asyncio.Lock()  # of the prompt that is handed in
        self._unsent: dict[str, Draft] = {}  # sent, and nobody knows yet whether it arrived: by run

    async def send(self, draft: Draft) -> None:
        """The editor is free again at the receipt; what was refused, or did not arrive, is back in it."""
        from kedge.client.submission import new_run_id

        screen = self._screen
        again = next((run_id for run_id, sent in self._unsent.items() if sent == draft), None)
        run_id = again or new_run_id()
        self._unsent[run_id] = draft
        is_typed = draft in screen.editor.outbox.drafts  # else it is the text of a command
        screen.sync.retry()
        try:
            async with self._turn:
                await self._hand_in(draft, run_id)
        except Refused as error:
            if error.code == "run_id_conflict":  # it had arrived, before mode or session were changed
                self._arrived(run_id)
                screen.hint("It had been sent before")
                return
            self._unsent.pop(run_id, None)
            self._put_back(draft, is_typed=is_typed)
            screen.hint(f"Not sent: {error}")
            return
        except ClientError as error:
            if run_id in self._unsent:
                self._put_back(draft, is_typed=is_typed)
                screen.hint(f"Not sent: {error}; Enter tries again")
            return
        self._arrived(run_id)
        screen.hint("")
        screen.transcript.scroll_end(animate=False)

    def settle(self) -> None:
        """A prompt whose receipt was lost, and which the story tells of, did arrive."""
        session = self._screen.session
        told = session.runs if session else {}
        for run_id in [each for each in self._unsent if each in self._screen.workspace.runs or each in told]:
            self._arrived(run_id)

    async def _hand_in(self, draft: Draft, run_id: str) -> None:
        screen, api = self._screen, self._screen.api
        if screen.session_id is None:
            # A command says little of what a session is about: the first prompt will.
            title = provisional_title(draft.text) if draft.kind == "prompt" else ""
            session_id = (await api.create_session(title)).id
            await screen.sync.open_session(session_id)
            screen.session_id = session_id
        if draft.kind == "shell":
            await api.shell(screen.session_id, draft.text, run_id=run_id)
            return
        await api.submit(
            screen.session_id,
            draft.text,
            run_id=run_id,
            attachments=draft.attachments,
            mode=screen.mode,
            model=screen.kedge.launch.model,
        )

    def _arrived(self, run_id: str) -> None:
        if (draft := self._unsent.pop(run_id, None)) is not None:
            self._screen.editor.confirm_sent(draft)

    def _put_back(self, draft: Draft, *, is_typed: bool) -> None:
        if is_typed:
            self._screen.editor.put_back_unsent(draft)
        else:
            self._screen.editor.put_back(draft.text)
