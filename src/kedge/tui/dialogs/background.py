"""Commands that run in the background; one can be ended."""

from __future__ import annotations

from typing import Literal

from textual import work
from textual.app import ComposeResult
from textual.binding import Binding
from textual.widgets import OptionList
from textual.widgets.option_list import Option

from kedge.client.errors import ClientError
from kedge.client.http1 import escape
from kedge.protocol.runs import Run
from kedge.protocol.sessions import Job
from kedge.tui import formats
from kedge.tui.api import Api
from kedge.tui.dialogs.dialog import Dialog

Choice = tuple[Literal["edit", "drop"], str]


class QueueDialog(Dialog[Choice]):
    BINDINGS = [Binding("d,delete", "drop", "drop")]  # noqa: RUF012 - as Textual has it
    FOOTER = "Enter edits · d drops · Esc closes"

    def __init__(self, queue: list[Run]) -> None:
        super().__init__()
        self.title = "Queued prompts"
        self._queue = queue

    def body(self) -> ComposeResult:
        yield OptionList(
            *(Option(formats.one_line(run.prompt, 200), id=run.run_id) for run in self._queue), markup=False
        )

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(("edit", str(event.option_id)))

    def action_drop(self) -> None:
        found = self.query_one(OptionList)
        if found.highlighted is not None:
            self.dismiss(("drop", str(found.get_option_at_index(found.highlighted).id)))


class JobsDialog(Dialog[None]):
    BINDINGS = [Binding("k,delete", "end", "end")]  # noqa: RUF012 - as Textual has it
    FOOTER = "k ends the job · Esc closes"

    def __init__(self, api: Api) -> None:
        super().__init__()
        self.title = "Background jobs"
        self._desk = api

    def body(self) -> ComposeResult:
        yield OptionList(markup=False)

    def on_mount(self) -> None:
        self._load()

    @work(exclusive=True)
    async def _load(self) -> None:
        found = self.query_one(OptionList)
        try:
            jobs = await self._desk.jobs()
        except ClientError as error:
            self.notify(str(error), severity="error")
            return
        found.clear_options()
        found.add_options([Option(_describe_job(job), id=job.id, disabled=job.state == "ended") for job in jobs])
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
        self._load()


def _describe_job(job: Job) -> str:
    state = "running" if job.state == "running" else f"ended ({job.exit_code})"
    return f"{job.id}  {state}  {formats.one_line(job.command, 70)}"
