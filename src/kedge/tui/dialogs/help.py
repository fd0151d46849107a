"""Every key and command, from the tables that make them work."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.content import Content
from textual.screen import Screen
from textual.widgets import Static

from kedge.tui.dialogs.dialog import Dialog
from kedge.tui.keys import KEYS

Row = tuple[str, str]


class HelpDialog(Dialog[None]):
    FOOTER = "↑↓ scrolls · Esc closes"

    def __init__(self, commands: Sequence[Row], editor_keys: Sequence[Row] = ()) -> None:
        super().__init__()
        self.title = "Help"
        self._commands = commands
        self._editor_keys = editor_keys

    def body(self) -> ComposeResult:
        with VerticalScroll():
            yield Static(id="help-text")

    def on_mount(self) -> None:
        self.query_one(".dialog").add_class("-tall")
        self.query_one("#help-text", Static).update(self._text(self.app.screen_stack[0]))
        self.query_one(VerticalScroll).focus()

    def _text(self, screen: Screen[object]) -> Content:
        """The keys as they are bound now, whatever the configuration made of them."""
        bound: dict[str, list[str]] = {}
        for key, binding in screen.active_bindings.items():
            if binding.binding.id is not None:
                bound.setdefault(binding.binding.id, []).append(self.app.get_key_display(binding.binding) or key)
        sections: list[tuple[str, Sequence[Row]]] = [
            (group, [(", ".join(dict.fromkeys(bound.get(key.action, [key.keys]))), key.help) for key in keys])
            for group, keys in groupby(KEYS, key=lambda key: key.group)
        ]
        sections += [("Editor", self._editor_keys), ("Commands", self._commands)]
        width = max(len(left) for _, rows in sections for left, _ in rows) + 2
        lines: list[Content] = []
        for name, rows in sections:
            if rows:
                lines += [Content.styled(name, "bold $primary")]
                lines += [Content.assemble((f"  {left:{width}}", ""), (right, "$text-muted")) for left, right in rows]
                lines.append(Content(""))
        return Content("\n").join(lines)
