"""Shows pending permission requests and questions, one at a time, and sends the answers.

A request that was answered by another client is closed, with a notice (P14). A permission request gets the keys only
if nobody is typing: the prompt is empty and the keyboard quiet, or the user asks for it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from kedge.client.errors import ClientError
from kedge.protocol.requests import QuestionRequest
from kedge.tui.api import PermissionAnswer
from kedge.tui.dialogs import dialog as dialogs
from kedge.tui.state.session import Request
from kedge.tui.state.workspace import RequestResolved

if TYPE_CHECKING:
    from kedge.protocol.runs import Mode, Run
    from kedge.tui.dialogs.docked import DockedDialog
    from kedge.tui.dialogs.permission import PermissionDialog
    from kedge.tui.dialogs.plan import PlanDialog
    from kedge.tui.dialogs.requests import FilledIn, QuestionDialog
    from kedge.tui.port import Chat

_ACTIONS = {
    "allow": "allowed",
    "allow_session": "allowed for the session",
    "allow_always": "always allowed",
    "deny": "denied",
    "answer": "answered",
    "cancel": "skipped",
}


class RequestDialogs:
    def __init__(self, screen: Chat) -> None:
        self._screen = screen
        self.permission: PermissionDialog | None = None
        self.plan: PlanDialog | None = None
        self._closed_plans: set[str] = set()  # ids of their runs: closed or answered
        self._remarks: dict[str, str] = {}  # typed about a plan, but not sent, by its run
        self._questions: QuestionDialog | None = None
        self._shown: str | None = None  # id of the request that is shown
        self._postponed: set[str] = set()
        self._answered: set[str] = set()  # by this client: they need no notice
        self._filled_in: dict[str, list[FilledIn]] = {}  # answers to questions that were not sent, by request
        self._reasons: dict[str, str] = {}  # typed, but not sent, by request
        self.last_key_at = time.monotonic()
        self._is_focus_offered = False

    def sync(self, requests: Sequence[Request]) -> None:
        """Show the oldest request that is not postponed, unless another one or a dialog is open."""
        if self._shown is not None and self._shown not in {request.id for request in requests}:
            self._close()
        if self._shown is not None or len(self._screen.interface.screen_stack) > 1:
            return
        for request in requests:
            if request.id not in self._postponed and request.id not in self._answered:
                self._open(request)
                return

    def sync_plan(self, run: Run | None) -> None:
        """Show the dialog for a plan that waits for the user's decision; None: there is none."""
        if self.plan is not None and (run is None or run.run_id != self.plan.run_id):
            self._remove_plan()
        if run is None or self.docked is not None or run.run_id in self._closed_plans:
            return
        if len(self._screen.interface.screen_stack) > 1:
            return
        from kedge.tui.dialogs.plan import PlanDialog

        self.plan = PlanDialog(
            run.run_id,
            lambda mode, remark: self._take_plan(run, mode, remark),
            self._write,
            has_cost_limit=self._screen.interface.settings.has_cost_limit,
            key=self._screen.key("answer"),
            remark=self._remarks.get(run.run_id, ""),
        )
        self._screen.show_request(self.plan)
        self.offer_focus()

    @property
    def docked(self) -> DockedDialog | None:
        """The dialog above the editor."""
        return self.permission or self.plan

    def reopen(self) -> None:
        """Give the keys to the request that is shown, or back to the editor; else show postponed requests again."""
        if self.docked is not None:
            self._is_focus_offered = True  # from now on the user decides who has the keys
            self._focus(is_dialog=not self.docked.is_in_use)
            return
        self._postponed.clear()
        self._closed_plans.clear()
        self._screen.show_state()
        if self.docked is not None:
            self._is_focus_offered = True
            self._screen.call_after_refresh(self._focus, is_dialog=True)

    def forget(self) -> None:
        """Close the request: another session is shown."""
        self._remove_plan()
        self._postponed.clear()
        self._close()

    def postpone(self) -> bool:
        """Postpone the permission request, or the decision about a plan, if it has the keys; return whether it had."""
        if self.docked is None or not self.docked.is_in_use:
            return False
        self.docked.postpone()
        return True

    def take_resolution(self, change: RequestResolved) -> None:
        request = change.request
        session = self._screen.session
        shown = (self._screen.session_id, *(session.children if session else ()))
        if request.session_id in shown and request.id not in self._answered and change.by != "server":
            by = "the new mode" if change.by == "mode" else change.by
            self._screen.notify(f"Answered by {by}: {_describe(change.action)}")
        self._answered.discard(request.id)
        self._postponed.discard(request.id)

    # who gets the keys

    def note_key(self) -> None:
        """Called for every key and paste, before anything handles it."""
        self.last_key_at = time.monotonic()

    def offer_focus(self) -> None:
        """Give the keys to a permission request as soon as the prompt is empty and the keyboard was quiet.

        Called when a key has had its effect, and when a request or the screen is shown.
        """
        if self.docked is not None and not self.docked.is_in_use:
            self._screen.call_after_quiet(self._give_focus, self.last_key_at + dialogs.QUIET_S - time.monotonic())

    def _give_focus(self) -> None:
        screen, dialog = self._screen, self.docked
        if dialog is None or dialog.is_in_use or len(screen.interface.screen_stack) > 1:
            return
        if screen.editor.text.strip():
            self._is_focus_offered = False  # again when the prompt has been sent or deleted
        elif not self._is_focus_offered and screen.editor.has_focus:
            self._is_focus_offered = True
            self._focus(is_dialog=True)

    def _focus(self, *, is_dialog: bool) -> None:
        self._screen.set_focus(self.docked if is_dialog and self.docked else self._screen.editor)

    def _write(self, text: str) -> None:
        """Put text that was typed into the dialog into the editor, which gets the following keys, too."""
        self._focus(is_dialog=False)
        self._screen.editor.insert_text(text)
        self._is_focus_offered = False

    # opening and closing

    def _open(self, request: Request) -> None:
        self._remove_plan()
        self._shown = request.id
        if isinstance(request, QuestionRequest):
            from kedge.tui.dialogs.requests import QuestionDialog

            self._questions = QuestionDialog(request, self._filled_in.get(request.id, ()))
            self._screen.interface.push_screen(self._questions, lambda answer: self._take_answer(request, answer))
            return
        from kedge.tui.dialogs.permission import PermissionDialog

        self.permission = PermissionDialog(
            request,
            lambda answer: self._take_answer(request, answer),
            self._write,
            key=self._screen.key("answer"),
            reason=self._reasons.get(request.id, ""),
        )
        self._screen.show_request(self.permission)
        self.offer_focus()

    def _close(self) -> None:
        if self._questions is not None and not self._questions.is_active:
            return  # another dialog is in front: this one closes after it
        self._keep_filled_in()
        questions, self._questions, self._shown = self._questions, None, None
        if questions is not None:
            questions.dismiss(None)
        self._remove_permission()

    def _keep_filled_in(self) -> None:
        """Keep what was filled in: the user may go on later, or the sending may fail."""
        if self._questions is not None and self._shown is not None:
            self._filled_in[self._shown] = self._questions.filled_in

    def _remove_permission(self) -> None:
        dialog, self.permission = self.permission, None
        self._is_focus_offered = False
        if dialog is None:
            return
        self._reasons[dialog.request.id] = dialog.reason.value
        if dialog.is_in_use:
            self._focus(is_dialog=False)
        dialog.remove()

    def _remove_plan(self) -> None:
        dialog, self.plan = self.plan, None
        if dialog is None:
            return
        self._is_focus_offered = False
        self._remarks[dialog.run_id] = dialog.reason.value
        if dialog.is_in_use:
            self._focus(is_dialog=False)
        dialog.remove()

    def _take_plan(self, run: Run, mode: Mode | None, remark: str) -> None:
        """Called with the mode of the next prompt; None: the user closed the dialog."""
        self._closed_plans.add(run.run_id)
        self._remove_plan()
        if mode is not None:
            self._screen.run_worker(self._go_on(run, mode, remark), group="plan")

    async def _go_on(self, run: Run, mode: Mode, remark: str) -> None:
        if not await self._screen.go_on(run, mode, remark):
            self._closed_plans.discard(run.run_id)
            self._screen.draw_soon()
        elif remark:
            self._remarks.pop(run.run_id, None)

    def _take_answer(self, request: Request, answer: PermissionAnswer | list[Any] | None) -> None:
        """Called with an answer; None: the user postponed the request, or `_close` closed it."""
        is_postponed = answer is None and self._shown == request.id
        self._keep_filled_in()
        self._questions = self._shown = None
        self._remove_permission()
        if answer is not None:
            self._answered.add(request.id)
            self._screen.run_worker(self._send(request, answer), group="answer")
        elif is_postponed:
            self._postponed.add(request.id)
        self._screen.draw_soon()

    async def _send(self, request: Request, answer: PermissionAnswer | list[Any]) -> None:
        try:
            receipt = await self._screen.api.answer(request.id, answer)
        except ClientError as error:
            self._answered.discard(request.id)
            self._screen.notify(f"Could not send your answer: {error}", severity="error")
            self._screen.draw_soon()
            return
        self._reasons.pop(request.id, None)
        self._filled_in.pop(request.id, None)
        if not receipt.resolved:
            self._screen.notify(f"Already answered by {receipt.by}: {_describe(receipt.action)}")


def _describe(action: str) -> str:
    return _ACTIONS.get(action, action.replace("_", " "))
