"""Requests to a person, one dialog at a time. One answered elsewhere closes here, with a word on who answered (P14)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from kedge.client.errors import ClientError
from kedge.protocol.requests import PermissionAction, PermissionRequest
from kedge.tui.state.session import Request
from kedge.tui.state.workspace import RequestResolved

if TYPE_CHECKING:
    from textual.screen import ModalScreen

    from kedge.tui.screen import ChatScreen


class RequestDialogs:
    def __init__(self, screen: ChatScreen) -> None:
        self._screen = screen
        self._dialog: ModalScreen[Any] | None = None
        self._shown: str | None = None  # the request in the dialog
        self._later: set[str] = set()  # put off by the person
        self._answered: set[str] = set()  # by us: no word on those

    def sync(self, requests: Sequence[Request]) -> None:
        """Show the oldest request that is not put off, unless another dialog is open."""
        pending = {request.id for request in requests}
        if self._shown is not None and self._shown not in pending:
            self._close()
        if self._dialog is not None or len(self._screen.app.screen_stack) > 1:
            return
        for request in requests:
            if request.id not in self._later and request.id not in self._answered:
                self._open(request)
                return

    def reopen(self) -> None:
        self._later.clear()

    def forget(self) -> None:
        """Another session is looked at."""
        self._later.clear()
        self._close()

    def resolved(self, what: RequestResolved) -> None:
        """Told by the story: perhaps by somebody else."""
        is_here = what.request.session_id in (self._screen.session_id, *self._children())
        if is_here and what.request.id not in self._answered and what.by != "server":
            self._screen.notify(f"{what.by} answered: {what.action.replace('_', ' ')}")
        self._answered.discard(what.request.id)
        self._later.discard(what.request.id)

    def _children(self) -> list[str]:
        session = self._screen.session
        return list(session.children) if session is not None else []

    def _open(self, request: Request) -> None:
        if isinstance(request, PermissionRequest):
            from kedge.tui.dialogs.requests import PermissionDialog

            dialog: ModalScreen[Any] = PermissionDialog(request)
        else:
            from kedge.tui.dialogs.requests import QuestionDialog

            dialog = QuestionDialog(request)
        self._dialog, self._shown = dialog, request.id
        self._screen.app.push_screen(dialog, lambda answer: self._closed(request, answer))

    def _close(self) -> None:
        dialog = self._dialog
        if dialog is not None and dialog.is_active:  # else another is in front of it: it goes after that one
            self._dialog = self._shown = None
            dialog.dismiss(None)

    def _closed(self, request: Request, answer: PermissionAction | list[Any] | None) -> None:
        was_ours = self._shown == request.id
        self._dialog, self._shown = None, None
        if answer is not None:
            self._answered.add(request.id)
            self._screen.run_worker(self._answer(request, answer), group="answer")
        elif was_ours:
            self._later.add(request.id)
        self._screen.changed()

    async def _answer(self, request: Request, answer: PermissionAction | list[Any]) -> None:
        api = self._screen.api
        try:
            if isinstance(answer, str):
                receipt = await api.grant(request.id, answer)
            elif answer:
                receipt = await api.answer(request.id, answer)
            else:
                receipt = await api.skip_questions(request.id)
        except ClientError as error:
            self._answered.discard(request.id)
            self._screen.notify(f"Not answered: {error}", severity="error")
            self._screen.changed()
            return
        if not receipt.resolved:
            self._screen.notify(f"{receipt.by} was faster: {receipt.action.replace('_', ' ')}")
