"""Every key and command, from the bindings as they are now and the table that makes commands work."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widget import Widget
from textual.widgets import Static

from kedge.tui.chat.transcript import Transcript
from kedge.tui.dialogs.dialog import Dialog
from kedge.tui.editor.keys import KEYS as EDITOR_KEYS
from kedge.tui.keys import KEYS, shown

if TYPE_CHECKING:
    from kedge.tui.screen import ChatScreen

Row = tuple[str, str]


class HelpDialog(Dialog[None]):
    FOOTER = "↑↓ scrolls · Esc closes"

    def __init__(self, screen: ChatScreen, commands: Sequence[Row]) -> None:
        super().__init__()
        self.title = "Help"
        self._chat = screen
        self._commands = commands

    def body(self) -> ComposeResult:
        with VerticalScroll():
            yield Static(_text(self._sections()), id="help-text")

    def on_mount(self) -> None:
        self.query_one(".dialog").add_class("-tall")
        self.query_one(VerticalScroll).focus()

    def _sections(self) -> list[tuple[str, Sequence[Row]]]:
        """The keys as they are bound now, whatever the configuration made of them."""
        chat, keymap = self._chat, self._chat.kedge.settings.keys
        bound = _bound(chat, keymap)
        sections: list[tuple[str, Sequence[Row]]] = [
            (group, [(bound.get(key.action, ""), key.help) for key in keys])
            for group, keys in groupby(KEYS, key=lambda key: key.group)
        ]
        bound = _bound(chat.editor, keymap)
        editor = [(bound.get(f"editor.{key.action}", ""), key.help) for key in EDITOR_KEYS if key.help]
        in_chat = [
            (shown(each.key.split(",")), each.description[:1].lower() + each.description[1:])
            for each in Transcript.BINDINGS
            if isinstance(each, Binding)
        ]
        return [*sections, ("Editor", editor), ("In the chat", in_chat), ("Commands", self._commands)]


def _bound(widget: Widget, keymap: Mapping[str, str]) -> dict[str, str]:
    """Keys by the id of their binding."""
    bindings = widget._bindings.copy()  # pyright: ignore[reportPrivateUsage] - there is no other way to what is bound
    bindings.apply_keymap(dict(keymap))
    found: dict[str, list[str]] = {}
    for key, binding in bindings:
        if binding.id is not None:
            found.setdefault(binding.id, []).append(key)
    return {name: shown(keys) for name, keys in found.items()}


def _text(sections: Sequence[tuple[str, Sequence[Row]]]) -> Content:
    width = max(len(left) for _, rows in sections for left, _ in rows) + 2
    lines: list[Content] = []
    for name, rows in sections:
        lines.append(Content.styled(name, "bold $primary"))
        lines += [Content.assemble((f"  {left or 'none':{width}}", ""), (right, "$text-muted")) for left, right in rows]
        lines.append(Content(""))
    return Content("\n").join(lines[:-1])
