"""Background jobs with their output, which can be stopped."""

from __future__ import annotations

import asyncio

from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import VerticalScroll
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from kedge.client.errors import ClientError
from kedge.protocol.sessions import MAX_JOB_OUTPUT_BYTES, Job
from kedge.protocol.text_safety import program_output, visible
from kedge.tui import formats
from kedge.tui.api import Api
from kedge.tui.dialogs.dialog import Dialog

WAIT_S = 20.0  # less than the silence after which a connection counts as lost
PAUSE_S = 0.1
SHOWN_CHARS = 50_000  # the last ones


class JobsDialog(Dialog[None]):
    """The jobs of the workspace, and the output of the highlighted one as it grows."""

    BINDINGS = [  # noqa: RUF012 - as Textual has it
        Binding("k,delete", "kill", "stop"),
        Binding("pageup", "scroll('page_up')", "output up", priority=True),
        Binding("pagedown", "scroll('page_down')", "output down", priority=True),
    ]
    FOOTER = "↑↓ job · PgUp PgDn scroll its output · k stop it · Esc close"

    def __init__(self, api: Api) -> None:
        super().__init__("Background jobs")
        self._api = api
        self._jobs: dict[str, Job] = {}
        self._stopping: set[str] = set()

    def body(self) -> ComposeResult:
        yield OptionList(markup=False)
        with VerticalScroll(can_focus=False, id="job-output"):
            yield Static(markup=False)

    def on_mount(self) -> None:
        self.query_one(OptionList).focus()
        self._watch()

    @work
    async def _watch(self) -> None:
        """Show the jobs, and again whenever one begins or ends."""
        try:
            self._show(await self._api.jobs())
            while True:
                running = [job.id for job in self._jobs.values() if job.state == "running"]
                self._show(await self._api.wait_for_jobs(running, WAIT_S))
        except ClientError as error:
            self.notify(str(error), severity="error")

    def _show(self, jobs: list[Job]) -> None:
        self._jobs = {job.id: job for job in jobs}
        options = self.query_one(OptionList)
        option = options.highlighted_option
        ids = [job.id for job in jobs]
        shown = [Option(self._describe(job), id=job.id) for job in jobs]
        options.clear_options()
        options.add_options(shown or [Option("No background jobs", disabled=True)])
        before = option.id if option else None
        options.highlighted = ids.index(before) if before in ids else 0 if ids else None
        self.query_one("#job-output").display = bool(jobs)

    def _describe(self, job: Job) -> str:
        return f"{job.id}  {self._describe_state(job):<15}  {formats.one_line(job.command, 70)}"

    def _describe_state(self, job: Job) -> str:
        if job.state != "ended":
            return "stopping…" if job.id in self._stopping else "running"
        if job.exit_code is None:
            return "ended"
        return f"exited with {job.exit_code}" if job.exit_code >= 0 else f"ended, signal {-job.exit_code}"

    @on(OptionList.OptionHighlighted)
    def _follow_highlighted(self, event: OptionList.OptionHighlighted) -> None:
        if event.option_id is not None:
            self._follow_output(event.option_id)

    @work(exclusive=True, group="output")
    async def _follow_output(self, job_id: str) -> None:
        """Show a job's output as it grows; it stays where the user scrolled to."""
        view, shown = self.query_one("#job-output", VerticalScroll), self.query_one("#job-output Static", Static)
        shown.update("")
        text, after = "", None
        while True:
            try:
                output = await self._api.job_output(job_id, after, WAIT_S)
            except ClientError as error:
                shown.update(visible(str(error)))
                return
            is_at_end = view.scroll_y >= view.max_scroll_y
            if output.text or after is None:
                text = (text + output.text)[-SHOWN_CHARS:]
                shown.update(program_output(text).rstrip() or "No output yet")
                if is_at_end:
                    view.scroll_end(animate=False)
            is_all = len(output.text.encode()) < MAX_JOB_OUTPUT_BYTES // 2
            if output.job.state == "ended" and is_all:
                return
            after = output.next
            await asyncio.sleep(PAUSE_S)  # a fast job must not be drawn line by line

    def action_scroll(self, how: str) -> None:
        getattr(self.query_one("#job-output", VerticalScroll), f"scroll_{how}")(animate=False)

    @work(group="kill")
    async def action_kill(self) -> None:
        option = self.query_one(OptionList).highlighted_option
        job = self._jobs.get(option.id or "") if option else None
        if job is None or job.state == "ended" or job.id in self._stopping:
            return
        self._stopping.add(job.id)
        self._show(list(self._jobs.values()))
        try:
            await self._api.kill_job(job.id)
        except ClientError as error:
            self.notify(str(error), severity="error")
        self._stopping.discard(job.id)
        self._show(list(self._jobs.values()))
