"""The queue: each prompt can be edited, moved, sent into the running turn at once, or removed."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Literal

from textual import work
from textual.app import ComposeResult
from textual.binding import Binding
from textual.widgets import OptionList
from textual.widgets.option_list import Option

from kedge.client.errors import ClientError
from kedge.protocol.runs import QueuedPrompt, Run
from kedge.tui import formats
from kedge.tui.api import Api
from kedge.tui.dialogs.dialog import Dialog


class QueueDialog(Dialog[QueuedPrompt]):
    """Returns a prompt that was taken out of the queue to be edited. Closes when nothing is queued any more."""

    BINDINGS = [  # noqa: RUF012 - as Textual has it
        Binding("d,delete", "drop", "remove"),
        Binding("K,shift+up", "move(-1)", "earlier"),
        Binding("J,shift+down", "move(1)", "later"),
        Binding("s", "promote('steer')", "send now"),
        Binding("i", "promote('interrupt')", "interrupt"),
    ]
    FOOTER = "Enter edit · K J move · s send now · i interrupt · d remove · Esc close"

    def __init__(self, api: Api, session_id: str, queue: Sequence[Run]) -> None:
        super().__init__("Queued prompts")
        self.session_id = session_id
        self._api = api
        self._queue = list(queue)
        self._is_closing = False  # or a prompt is being taken out, which closes it

    def body(self) -> ComposeResult:
        yield OptionList(*map(_make_option, self._queue), markup=False)

    def on_mount(self) -> None:
        self.query_one(OptionList).highlighted = 0

    def show_queue(self, queue: Sequence[Run]) -> None:
        """Show the queue as it is now; the same prompt stays highlighted."""
        if list(queue) == self._queue or not self.is_mounted or self._is_closing:
            return
        before, self._queue = self._highlighted, list(queue)
        if not queue:
            self._is_closing = True
            self.dismiss(None)
            return
        options = self.query_one(OptionList)
        at = options.highlighted or 0
        ids = [run.run_id for run in queue]
        options.clear_options()
        options.add_options(map(_make_option, queue))
        options.highlighted = ids.index(before.run_id) if before and before.run_id in ids else min(at, len(ids) - 1)

    @property
    def _highlighted(self) -> Run | None:
        option = self.query_one(OptionList).highlighted_option
        return next((run for run in self._queue if option is not None and run.run_id == option.id), None)

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        run = next((run for run in self._queue if run.run_id == event.option_id), None)
        if run is not None:
            self._edit(run)

    @work(group="queue")
    async def _edit(self, run: Run) -> None:
        self._is_closing = True
        try:
            queued = await self._api.read_queued(run)  # before it is removed, and its attachments with it
            await self._api.drop(self.session_id, run.run_id)
        except ClientError as error:
            self.notify(str(error), severity="error")
            self._is_closing = False
        else:
            self.dismiss(queued)

    def action_drop(self) -> None:
        if run := self._highlighted:
            self._change(self._api.drop(self.session_id, run.run_id))

    def action_move(self, by: Literal[-1, 1]) -> None:
        if (run := self._highlighted) is None:
            return
        others = [each.run_id for each in self._queue if each is not run]
        at = min(max(self._queue.index(run) + by, 0), len(others))
        self._change(self._api.move(self.session_id, run.run_id, others[at] if at < len(others) else None))

    def action_promote(self, on_busy: Literal["steer", "interrupt"]) -> None:
        if run := self._highlighted:
            self._change(self._api.promote(self.session_id, run.run_id, on_busy))

    @work(group="queue")
    async def _change(self, request: Awaitable[None]) -> None:
        try:
            await request
        except ClientError as error:
            self.notify(str(error), severity="error")


def _make_option(run: Run) -> Option:
    now = "sent now: " if run.on_busy == "steer" else ""
    return Option(f"{now}{'!' if run.kind == 'shell' else ''}{formats.one_line(run.prompt, 200)}", id=run.run_id)
