"""What runs may do without asking: the mode, rules of the configuration, and what was allowed for this session. Rules
of the user's own configuration and grants of the session can be revoked."""

from __future__ import annotations

from typing import Any, NamedTuple, cast

from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding
from textual.content import Content
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from kedge.client.errors import ClientError
from kedge.protocol.api import ConfigAnswer, SessionGrants
from kedge.protocol.text_safety import visible_line
from kedge.tui.api import Api
from kedge.tui.dialogs.dialog import Dialog

_MUTED = "$foreground-muted"


class _Entry(NamedTuple):
    text: str
    origin: str
    grant_id: str = ""
    rule: str = ""  # of the user's configuration
    key: str = "allow"


class PermissionsDialog(Dialog[None]):
    BINDINGS = [Binding("d,delete,backspace", "revoke", "revoke")]  # noqa: RUF012 - as Textual has it
    FOOTER = "↑↓ select · d revoke · Esc close"

    def __init__(self, api: Api, session_id: str | None, mode: str) -> None:
        super().__init__("Permissions")
        self._api = api
        self._session_id = session_id
        self._mode = mode
        self._entries: list[_Entry] = []

    def body(self) -> ComposeResult:
        yield Static(f"Mode: {self._mode} (Shift+Tab or /mode changes it)", markup=False, classes="request")
        yield OptionList(markup=False)
        yield Static("", id="permissions-note", markup=False)

    def on_mount(self) -> None:
        self.query_one(OptionList).focus()
        self._load()

    @work(exclusive=True, group="load")
    async def _load(self) -> None:
        try:
            grants = await self._api.session_grants(self._session_id) if self._session_id else SessionGrants([])
            config = await self._api.config()
        except ClientError as error:
            self._say(str(error))
            return
        self._entries = [*_list_grants(grants), *_list_rules(config, "allow"), *_list_rules(config, "deny")]
        options = self.query_one(OptionList)
        highlighted = options.highlighted or 0
        options.clear_options()
        width = max((len(entry.text) for entry in self._entries), default=0)
        options.add_options([Option(_draw(entry, min(width, 60))) for entry in self._entries])
        if not self._entries:
            options.add_option(Option("Nothing is allowed or denied beyond the mode", disabled=True))
        options.highlighted = min(highlighted, len(self._entries) - 1) if self._entries else None

    @on(OptionList.OptionSelected)
    def _select(self) -> None:
        self._say("d revokes the selected entry")

    @work(exclusive=True, group="revoke")
    async def action_revoke(self) -> None:
        highlighted = self.query_one(OptionList).highlighted
        if highlighted is None or highlighted >= len(self._entries):
            return
        entry = self._entries[highlighted]
        try:
            if entry.grant_id:
                await self._api.revoke_grant(self._session_id or "", entry.grant_id)
                self._say("Revoked, from the next run on")
            elif entry.rule:
                await self._api.remove_rule(entry.key, entry.rule)
                self._say("Removed from your configuration, from the next run on")
            else:
                self._say(f"This rule is not in your own configuration: change it in {entry.origin}")
                return
        except ClientError as error:
            self._say(str(error))
        self._load()

    def _say(self, text: str) -> None:
        self.query_one("#permissions-note", Static).update(visible_line(text))


def _list_grants(grants: SessionGrants) -> list[_Entry]:
    return [
        _Entry(", ".join(grant.rules) or grant.description, "allowed for this session", grant_id=grant.id)
        for grant in grants.grants
    ]


def _list_rules(config: ConfigAnswer, key: str) -> list[_Entry]:
    """Return the rules of all layers; only those of the user's own file can be removed here."""
    entries: list[_Entry] = []
    for value in config.values:
        if value.key != f"permissions.{key}" or not isinstance(value.value, list):
            continue
        is_own = value.layer == "user"
        origin = "your configuration" if is_own else value.name or value.layer
        rules = [str(rule) for rule in cast("list[Any]", value.value)]
        entries += [_Entry(rule, f"{key}, {origin}", rule=rule if is_own else "", key=key) for rule in rules]
    return entries


def _draw(entry: _Entry, width: int) -> Content:
    return Content.assemble(
        (f"{visible_line(entry.text):<{width}}", "bold"), (f"  {visible_line(entry.origin)}", _MUTED)
    )
