"""Language servers in the interface: their state in the sidebar, and the list."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from kedge.client.errors import ClientError
from kedge.protocol.lsp import LspEvent

if TYPE_CHECKING:
    from kedge.protocol.lsp import LspServer
    from kedge.tui.dialogs.lsp import LspDialog
    from kedge.tui.port import Chat


class LspMenu:
    """What the interface knows of the workspace's language servers: read once, then kept true by events."""

    def __init__(self, screen: Chat) -> None:
        self._screen = screen
        self._known: dict[tuple[str, str], LspEvent] = {}
        self._dialog: LspDialog | None = None

    @property
    def running(self) -> list[LspEvent]:
        """Those that run, or should: in the order of their names."""
        return [each for _, each in sorted(self._known.items()) if each.state != "stopped"]

    def take(self, event: LspEvent) -> None:
        self._known[event.name, event.root] = event
        self._screen.draw_soon()
        if self._dialog is not None and self._dialog.is_attached:
            self._screen.run_worker(self.read(), group="lsp", exclusive=True)

    async def read(self) -> None:
        """Read the servers of the workspace; this starts none."""
        from kedge.protocol.lsp import LspServers

        try:
            servers = (await self._screen.api.call("GET", "/lsps", type=LspServers)).servers
        except ClientError:
            return  # the banner reports a lost connection
        self._known = {(each.name, each.root): _to_event(each) for each in servers}
        self._screen.draw_soon()
        if self._dialog is not None and self._dialog.is_attached:
            self._dialog.show(servers)

    def open_dialog(self) -> None:
        from kedge.tui.dialogs.lsp import LspDialog

        def forget(_: None) -> None:
            self._dialog = None

        self._dialog = LspDialog(self._screen.api, [])
        self._screen.interface.push_screen(self._dialog, forget)
        self._screen.run_worker(self.read(), group="lsp", exclusive=True)


def _to_event(server: LspServer) -> LspEvent:
    return msgspec.convert(server, LspEvent, from_attributes=True)
