"""The MCP servers of the workspace: state, tools and last error; connect again, and log in."""

from __future__ import annotations

import os
import sys
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
from kedge.protocol.mcp import McpServer, McpServers
from kedge.protocol.mcp_requests import McpLogin, McpLoginState
from kedge.protocol.text_safety import visible, visible_line
from kedge.tui import formats
from kedge.tui.api import Api
from kedge.tui.dialogs.dialog import Dialog

WAIT_S = 20  # less than the silence after which a connection counts as lost
_STATES = {
    "idle": ("not started", "$foreground-muted"),
    "starting": ("starting…", "$foreground-muted"),
    "ready": ("ready", "$text-success"),
    "failed": ("failed", "$text-error"),
    "needs_login": ("needs a login", "$text-warning"),
    "disabled": ("disabled", "$foreground-muted"),
}


class McpDialog(Dialog[None]):
    BINDINGS = [  # noqa: RUF012 - as Textual has it
        Binding("r", "restart", "connect again"),
        Binding("l", "log_in", "log in"),
        Binding("pageup", "scroll('page_up')", "details up", priority=True),
        Binding("pagedown", "scroll('page_down')", "details down", priority=True),
    ]
    FOOTER = "↑↓ server · r connect again · l log in · PgUp PgDn scroll · Esc close"

    def __init__(self, api: Api, servers: Sequence[McpServer]) -> None:
        super().__init__("MCP servers")
        self._api = api
        self._servers = list(servers)
        self._notes: dict[str, str] = {}  # of logins, by server

    def body(self) -> ComposeResult:
        yield OptionList(markup=False)
        with VerticalScroll(can_focus=False, id="mcp-details"):
            yield Static(markup=False)

    def on_mount(self) -> None:
        self.query_one(OptionList).focus()
        self.show(self._servers)

    def show(self, servers: Sequence[McpServer]) -> None:
        """Show these servers; the highlighted one stays."""
        self._servers = list(servers)
        options = self.query_one(OptionList)
        before = self._find_highlighted()
        options.clear_options()
        width = max((len(each.name) for each in servers), default=0)
        shown = [Option(_describe(each, width), id=each.name) for each in servers]
        none = Option("No MCP server is configured: kedge mcp add", disabled=True)
        options.add_options(shown or [none])
        names = [each.name for each in servers]
        name = before.name if before else None
        options.highlighted = names.index(name) if name in names else 0 if names else None
        self._show_details()

    @on(OptionList.OptionHighlighted)
    def _show_details(self) -> None:
        server = self._find_highlighted()
        text = "" if server is None else _describe_details(server, self._notes.get(server.name, ""))
        self.query_one("#mcp-details Static", Static).update(text)

    def _find_highlighted(self) -> McpServer | None:
        option = self.query_one(OptionList).highlighted_option
        return next((each for each in self._servers if option is not None and each.name == option.id), None)

    def action_scroll(self, how: str) -> None:
        getattr(self.query_one("#mcp-details", VerticalScroll), f"scroll_{how}")(animate=False)

    @work(group="restart")
    async def action_restart(self) -> None:
        server = self._find_highlighted()
        if server is None:
            return
        try:
            self.show(
                (await self._api.call("POST", f"/mcp/{escape(server.name)}/restart", {}, type=McpServers)).servers
            )
        except ClientError as error:
            self.notify(str(error), severity="error")

    @work(group="login", exclusive=True)
    async def action_log_in(self) -> None:
        """Begin a login, open the browser, and wait for its end."""
        server = self._find_highlighted()
        if server is None:
            return
        path = f"/mcp/{escape(server.name)}/login"
        try:
            url = (await self._api.call("POST", path, {}, type=McpLogin)).url
            self.app.copy_to_clipboard(url)
            _open_browser(url)
            self._note(server.name, f"Log in at this address, which was copied:\n{url}")
            state = McpLoginState("waiting")
            while state.state == "waiting":
                state = await self._api.call("GET", f"{path}?wait={WAIT_S}", type=McpLoginState)
        except ClientError as error:
            self._note(server.name, str(error))
            return
        self._note(
            server.name, "Logged in." if state.state == "done" else f"Not logged in: {state.error or 'begin again'}"
        )

    def _note(self, name: str, text: str) -> None:
        self._notes[name] = text
        self._show_details()


def _open_browser(url: str) -> None:
    if sys.platform == "darwin" or any(os.environ.get(name) for name in ("BROWSER", "DISPLAY", "WAYLAND_DISPLAY")):
        import webbrowser

        webbrowser.open(url)


def _describe(server: McpServer, width: int) -> Content:
    state, style = _STATES[server.state]
    offered = (("tool", len(server.tools)), ("prompt", server.prompts), ("resource", server.resources))
    counts = [f"{count} {what}{'' if count == 1 else 's'}" for what, count in offered if count]
    about = formats.one_line(server.error, 80) if server.error else " · ".join(counts)
    return Content.assemble(
        (visible_line(server.name).ljust(width), "bold"),
        "  ",
        (state.ljust(13), style),
        "  ",
        (about, "$foreground-muted"),
    )


def _describe_details(server: McpServer, note: str) -> str:
    parts = [note] if note else []
    if server.state == "needs_login" and not note:
        parts.append("This server needs a login: press l, or run kedge mcp login " + server.name)
    if server.error:
        parts.append(server.error)
    if server.title:
        version = f" {server.version}" if server.version else ""
        parts.append(f"{server.title}{version}, MCP {server.protocol or '?'}")
    if server.stderr:
        parts.append(f"The end of its standard error:\n{server.stderr}")
    parts.append("\n".join(f"{each.name}  {formats.one_line(each.description or '', 90)}" for each in server.tools))
    return visible("\n\n".join(part for part in parts if part))
