"""The files that a session changed, with the diff of each."""

from __future__ import annotations

from rich.cells import cell_len
from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from kedge.client.errors import ClientError
from kedge.http.http1 import escape
from kedge.protocol.files import SessionFile, SessionFiles
from kedge.protocol.text_safety import visible
from kedge.tui.api import Api
from kedge.tui.chat.diffs import DiffView
from kedge.tui.dialogs.dialog import Dialog
from kedge.tui.formats import pad


class DiffDialog(Dialog[None]):
    """One diff, as tall as the screen."""

    BINDINGS = [Binding("v", "split", "split view")]  # noqa: RUF012 - as Textual has it
    FOOTER = "v split view · Esc close"

    def __init__(self, path: str, diff: str) -> None:
        super().__init__(visible(path))
        self._diff = diff

    def body(self) -> ComposeResult:
        yield DiffView(self._diff)

    def on_mount(self) -> None:
        self.query_one(".dialog").add_class("-tall")
        self.query_one(DiffView).focus()

    def action_split(self) -> None:
        self.query_one(DiffView).toggle_split()


class ChangesDialog(Dialog[None]):
    BINDINGS = [Binding("v", "split", "split view")]  # noqa: RUF012 - as Textual has it
    FOOTER = "↑↓ file · Tab diff · v split view · Esc close"

    def __init__(self, api: Api, session_id: str) -> None:
        super().__init__("Changes in this session")
        self._api = api
        self._session_id = session_id
        self._diffs: dict[str, str] = {}

    def body(self) -> ComposeResult:
        with Vertical():
            yield Static("Loading…", id="changes-note", markup=False)
            yield OptionList(markup=False)
            yield DiffView()

    def on_mount(self) -> None:
        self.query_one(".dialog").add_class("-tall")
        self._load()

    @work(exclusive=True)
    async def _load(self) -> None:
        note, options = self.query_one("#changes-note", Static), self.query_one(OptionList)
        try:
            target = f"/sessions/{escape(self._session_id)}/files?diff=true"
            answer = await self._api.call("GET", target, type=SessionFiles)
        except ClientError as error:
            note.update(visible(str(error)))
            return
        self._diffs = {file.path: file.diff or "" for file in answer.files}
        note.update("\n".join(map(visible, answer.notes)) or "No files changed")
        note.display = bool(answer.notes or not answer.files)
        width = max((cell_len(visible(file.path)) for file in answer.files), default=0)
        options.add_options([Option(_draw_file(file, width), id=file.path) for file in answer.files])
        options.highlighted = 0 if answer.files else None
        options.focus()

    @on(OptionList.OptionHighlighted)
    def _show_diff(self, event: OptionList.OptionHighlighted) -> None:
        self.query_one(DiffView).show(self._diffs.get(event.option_id or "", ""))

    def action_split(self) -> None:
        self.query_one(DiffView).toggle_split()


def _draw_file(file: SessionFile, width: int) -> Content:
    return Content.assemble(
        pad(visible(file.path), width),
        (f"  {file.status:<8}", "$foreground-muted"),
        (f"  +{file.added}", "$text-success"),
        (f" -{file.removed}", "$text-error"),
    )
