"""Shows pending permission requests and questions, one dialog at a time, and sends the answers.

A dialog whose request was answered by another client closes, with a notice (P14).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from kedge.client.errors import ClientError
from kedge.protocol.requests import PermissionAction, PermissionRequest
from kedge.tui.state.session import Request
from kedge.tui.state.workspace import RequestResolved

if TYPE_CHECKING:
    from textual.screen import ModalScreen

    from kedge.tui.port import Chat

_ACTIONS = {
    "allow": "allowed",
    "allow_session": "allowed for the session",
    "deny": "denied",
    "answer": "answered",
    "cancel": "skipped",
}


class RequestDialogs:
    def __init__(self, screen: Chat) -> None:
        self._screen = screen
        self._dialog: ModalScreen[Any] | None = None
        self._shown: str | None = None  # id of the request in the dialog
        self._postponed: set[str] = set()
        self._answered: set[str] = set()  # by this client: they need no notice

    def sync(self, requests: Sequence[Request]) -> None:
        """Open a dialog for the oldest request that is not postponed, unless another dialog is open."""
        if self._shown is not None and self._shown not in {request.id for request in requests}:
            self._close()
        if self._dialog is not None or len(self._screen.interface.screen_stack) > 1:
            return
        for request in requests:
            if request.id not in self._postponed and request.id not in self._answered:
                self._open(request)
                return

    def reopen(self) -> None:
        """Show postponed requests again, from the next `sync` on."""
        self._postponed.clear()

    def forget(self) -> None:
        """Close the dialog: another session is shown."""
        self._postponed.clear()
        self._close()

    def take_resolution(self, change: RequestResolved) -> None:
        request = change.request
        session = self._screen.session
        shown = (self._screen.session_id, *(session.children if session else ()))
        if request.session_id in shown and request.id not in self._answered and change.by != "server":
            self._screen.notify(f"Answered by {change.by}: {_describe(change.action)}")
        self._answered.discard(request.id)
        self._postponed.discard(request.id)

    def _open(self, request: Request) -> None:
        dialog = _make_dialog(request)
        self._dialog, self._shown = dialog, request.id
        self._screen.interface.push_screen(dialog, lambda answer: self._take_answer(request, answer))

    def _close(self) -> None:
        dialog = self._dialog
        if dialog is not None and dialog.is_active:  # else another dialog is in front: this one closes after it
            self._dialog = self._shown = None
            dialog.dismiss(None)

    def _take_answer(self, request: Request, answer: PermissionAction | list[Any] | None) -> None:
        """Called when the dialog has closed; None: the user postponed the request, or `_close` closed the dialog."""
        is_postponed = answer is None and self._shown == request.id
        self._dialog = self._shown = None
        if answer is not None:
            self._answered.add(request.id)
            self._screen.run_worker(self._send(request, answer), group="answer")
        elif is_postponed:
            self._postponed.add(request.id)
        self._screen.draw_soon()

    async def _send(self, request: Request, answer: PermissionAction | list[Any]) -> None:
        try:
            receipt = await self._screen.api.answer(request.id, answer)
        except ClientError as error:
            self._answered.discard(request.id)
            self._screen.notify(f"Could not send your answer: {error}", severity="error")
            self._screen.draw_soon()
            return
        if not receipt.resolved:
            self._screen.notify(f"Already answered by {receipt.by}: {_describe(receipt.action)}")


def _make_dialog(request: Request) -> ModalScreen[Any]:
    from kedge.tui.dialogs.requests import PermissionDialog, QuestionDialog

    return PermissionDialog(request) if isinstance(request, PermissionRequest) else QuestionDialog(request)


def _describe(action: str) -> str:
    return _ACTIONS.get(action, action.replace("_", " "))
