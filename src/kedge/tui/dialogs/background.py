"""Queued prompts, of which one can be edited or removed, and background jobs, which can be stopped."""

from __future__ import annotations

from typing import Literal

from textual import work
from textual.app import ComposeResult
from textual.binding import Binding
from textual.widgets import OptionList
from textual.widgets.option_list import Option

from kedge.client.errors import ClientError
from kedge.http.http1 import escape
from kedge.protocol.runs import Run
from kedge.protocol.sessions import Job
from kedge.tui import formats
from kedge.tui.api import Api
from kedge.tui.dialogs.dialog import Dialog

QueueChoice = tuple[Literal["edit", "drop"], str]  # with the id of the run


class QueueDialog(Dialog[QueueChoice]):
    BINDINGS = [Binding("d,delete", "drop", "remove")]  # noqa: RUF012 - as Textual has it
    FOOTER = "Enter edit · d remove · Esc close"

    def __init__(self, queue: list[Run]) -> None:
        super().__init__("Queued prompts")
        self._queue = queue

    def body(self) -> ComposeResult:
        yield OptionList(
            *(Option(formats.one_line(run.prompt, 200), id=run.run_id) for run in self._queue), markup=False
        )

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(("edit", str(event.option_id)))

    def action_drop(self) -> None:
        if option := self.query_one(OptionList).highlighted_option:
            self.dismiss(("drop", str(option.id)))


class JobsDialog(Dialog[None]):
    BINDINGS = [Binding("k,delete", "end", "stop")]  # noqa: RUF012 - as Textual has it
    FOOTER = "k stop the job · Esc close"

    def __init__(self, api: Api) -> None:
        super().__init__("Background jobs")
        self._api = api

    def body(self) -> ComposeResult:
        yield OptionList(markup=False)

    def on_mount(self) -> None:
        self._load()

    @work(exclusive=True)
    async def _load(self) -> None:
        options = self.query_one(OptionList)
        try:
            jobs = await self._api.jobs()
        except ClientError as error:
            self.notify(str(error), severity="error")
            return
        options.clear_options()
        options.add_options([Option(_describe_job(job), id=job.id, disabled=job.state == "ended") for job in jobs])
        if not jobs:
            options.add_option(Option("No background jobs", disabled=True))

    @work
    async def action_end(self) -> None:
        if (option := self.query_one(OptionList).highlighted_option) is None:
            return
        try:
            await self._api.call("POST", f"/jobs/{escape(option.id or '')}/kill", type=Job)
        except ClientError as error:
            self.notify(str(error), severity="error")
        self._load()


def _describe_job(job: Job) -> str:
    state = "running" if job.state == "running" else f"exited with {job.exit_code}"
    return f"{job.id}  {state}  {formats.one_line(job.command, 70)}"
