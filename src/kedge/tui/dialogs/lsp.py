"""The language servers of the workspace: state, errors and last error; start them again."""

from __future__ import annotations

from collections.abc import Sequence

from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from kedge.client.errors import ClientError
from kedge.http.http1 import escape
from kedge.protocol.lsp import LspServer, LspServers
from kedge.protocol.text_safety import visible, visible_line
from kedge.tui import formats
from kedge.tui.api import Api
from kedge.tui.dialogs.dialog import Dialog

_STATES = {
    "starting": ("starting…", "$foreground-muted"),
    "ready": ("ready", "$text-success"),
    "stopped": ("stopped", "$foreground-muted"),
    "failed": ("failed", "$text-error"),
}
NONE_STARTED = "No language server was started yet: this happens when the agent reads or edits a file of its language"


class LspDialog(Dialog[None]):
    BINDINGS = [  # noqa: RUF012 - as Textual has it
        Binding("r", "restart", "start again"),
        Binding("pageup", "scroll('page_up')", "details up", priority=True),
        Binding("pagedown", "scroll('page_down')", "details down", priority=True),
    ]
    FOOTER = "↑↓ server · r start again · PgUp PgDn scroll · Esc close"

    def __init__(self, api: Api, servers: Sequence[LspServer]) -> None:
        super().__init__("Language servers")
        self._api = api
        self._servers = list(servers)

    def body(self) -> ComposeResult:
        yield OptionList(markup=False)
        with VerticalScroll(can_focus=False, id="lsp-details"):
            yield Static(markup=False)

    def on_mount(self) -> None:
        self.query_one(OptionList).focus()
        self.show(self._servers)

    def show(self, servers: Sequence[LspServer]) -> None:
        """Show these servers; the highlighted one stays."""
        options = self.query_one(OptionList)
        before = self._find_highlighted()
        self._servers = list(servers)
        options.clear_options()
        width = max((len(visible_line(_name(each))) for each in servers), default=0)
        shown = [Option(_describe(each, width)) for each in servers]
        options.add_options(shown or [Option(NONE_STARTED, disabled=True)])
        names = [_name(each) for each in servers]
        name = _name(before) if before else None
        options.highlighted = names.index(name) if name in names else 0 if names else None
        self._show_details()

    @on(OptionList.OptionHighlighted)
    def _show_details(self) -> None:
        server = self._find_highlighted()
        self.query_one("#lsp-details Static", Static).update("" if server is None else _describe_details(server))

    def _find_highlighted(self) -> LspServer | None:
        number = self.query_one(OptionList).highlighted
        return self._servers[number] if number is not None and number < len(self._servers) else None

    def action_scroll(self, how: str) -> None:
        getattr(self.query_one("#lsp-details", VerticalScroll), f"scroll_{how}")(animate=False)

    @work(group="restart")
    async def action_restart(self) -> None:
        server = self._find_highlighted()
        if server is None:
            return
        try:
            path = f"/lsps/{escape(server.name)}/restart"
            self.show((await self._api.call("POST", path, {}, type=LspServers)).servers)
        except ClientError as error:
            self.notify(str(error), severity="error")


def _name(server: LspServer) -> str:
    return server.name if server.root in (".", "") else f"{server.name} ({server.root})"


def _describe(server: LspServer, width: int) -> Content:
    state, style = _STATES[server.state]
    if server.state == "ready" and server.is_busy:
        state = "loading…"
    about = formats.one_line(server.error or "", 80)
    if server.state == "ready":
        counts = (("error", server.errors), ("warning", server.warnings), ("open file", server.documents))
        about = " · ".join(f"{count} {what}{'' if count == 1 else 's'}" for what, count in counts)
    return Content.assemble(
        (visible_line(_name(server)).ljust(width), "bold"),
        "  ",
        (state.ljust(10), style),
        "  ",
        (about, "$foreground-muted"),
    )


def _describe_details(server: LspServer) -> str:
    parts = [server.error or ""]
    place = "the workspace" if server.root in (".", "") else server.root
    parts.append(f"Root: {place}" + (f"\nProcess: {server.pid}" if server.pid else ""))
    if server.state == "stopped":
        parts.append("It was not used for a while, and is started again when it is needed.")
    if server.stderr:
        parts.append(f"The end of its standard error:\n{server.stderr}")
    return visible("\n\n".join(part for part in parts if part))
