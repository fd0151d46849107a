"""Commands that run in the background; one can be ended."""

from __future__ import annotations

from textual import work
from textual.app import ComposeResult
from textual.binding import Binding
from textual.widgets import OptionList
from textual.widgets.option_list import Option

from kedge.client.errors import ClientError
from kedge.client.story import escape
from kedge.protocol.jobs import Job
from kedge.tui import words
from kedge.tui.desk import Desk
from kedge.tui.dialogs.dialog import Dialog


class JobsDialog(Dialog[None]):
    BINDINGS = [Binding("k,delete", "end", "end")]  # noqa: RUF012 - as Textual has it
    FOOTER = "k ends the job · Esc closes"

    def __init__(self, desk: Desk) -> None:
        super().__init__()
        self.title = "Background jobs"
        self._desk = desk

    def body(self) -> ComposeResult:
        yield OptionList(markup=False)

    def on_mount(self) -> None:
        self._read()

    @work(exclusive=True)
    async def _read(self) -> None:
        found = self.query_one(OptionList)
        try:
            jobs = await self._desk.jobs()
        except ClientError as error:
            self.notify(str(error), severity="error")
            return
        found.clear_options()
        found.add_options([Option(_line(job), id=job.id, disabled=job.state == "ended") for job in jobs])
        if not jobs:
            found.add_option(Option("There are none.", disabled=True))

    @work
    async def action_end(self) -> None:
        found = self.query_one(OptionList)
        if found.highlighted is None:
            return
        job_id = found.get_option_at_index(found.highlighted).id or ""
        try:
            await self._desk.call("POST", f"/jobs/{escape(job_id)}/kill", type=Job)
        except ClientError as error:
            self.notify(str(error), severity="error")
        self._read()


def _line(job: Job) -> str:
    state = "running" if job.state == "running" else f"ended ({job.exit_code})"
    return f"{job.id}  {state}  {words.one_line(job.command, 70)}"
