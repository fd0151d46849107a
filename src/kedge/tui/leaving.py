"""Leaving: whoever would leave a run is asked, and told that it goes on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kedge.client.errors import ClientError

if TYPE_CHECKING:
    from kedge.tui.app import KedgeApp

TEXT = "A run is going on. It goes on without you: come back with `kedge --continue`."
CHOICES = (("leave", "Leave"), ("cancel", "Cancel it and leave"), ("stay", "Stay"))


def leave(app: KedgeApp) -> None:
    page = app.chat.page
    if page is None or not page.is_busy:
        app.exit(0)
        return
    from kedge.tui.dialogs.choices import ConfirmDialog

    def chosen(choice: str | None) -> None:
        if choice == "leave":
            app.exit(0)
        elif choice == "cancel":
            app.run_worker(_cancel_and_leave(app, page.session_id), group="leave")
        else:
            app.chat.changed()  # a request that was answered meanwhile is not asked again

    app.push_screen(ConfirmDialog(TEXT, CHOICES), chosen)


async def _cancel_and_leave(app: KedgeApp, session_id: str) -> None:
    try:
        await app.desk.cancel(session_id)
    except ClientError as error:
        app.notify(f"Not cancelled: {error}", severity="error")
        return
    app.exit(0)
