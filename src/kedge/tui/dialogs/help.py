"""Lists every key and command, from the tables that define them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from textwrap import wrap

from textual.app import ComposeResult
from textual.binding import Binding, BindingsMap, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widgets import Static

from kedge.tui.chat.transcript import Transcript
from kedge.tui.dialogs.dialog import Dialog
from kedge.tui.editor.keys import KEYS as EDITOR_KEYS
from kedge.tui.editor.keys import bindings as editor_bindings
from kedge.tui.settings import KEYS, bindings, format_keys

Row = tuple[str, str]
_HELP = "$foreground-muted"
MAX_KEYS = 2  # shown for an action that has more


class HelpDialog(Dialog[None]):
    FOOTER = "↑↓ scroll · Esc close"

    def __init__(self, keymap: Mapping[str, str], commands: Sequence[Row]) -> None:
        """`keymap` is `[tui.keys]`: keys by the id of their binding."""
        super().__init__("Help")
        self._keymap = keymap
        self._commands = commands

    def body(self) -> ComposeResult:
        with VerticalScroll():
            yield Static(id="help-text")

    def on_mount(self) -> None:
        self.query_one(".dialog").add_class("-tall")
        self.query_one(VerticalScroll).focus()

    def on_resize(self) -> None:
        width = self.query_one(VerticalScroll).size.width - 2  # the scroll bar
        self.query_one("#help-text", Static).update(_draw(self._sections(), width))

    def _sections(self) -> list[tuple[str, Sequence[Row]]]:
        """Return the keys as the configuration has them, grouped, and the commands."""
        bound = _find_keys(bindings(), self._keymap)
        sections: list[tuple[str, Sequence[Row]]] = [
            (group, [(bound.get(key.action, ""), key.help) for key in keys])
            for group, keys in groupby(KEYS, key=lambda key: key.group)
        ]
        bound = _find_keys(editor_bindings(), self._keymap)
        editor = [(bound.get(f"editor.{key.action}", ""), key.help) for key in EDITOR_KEYS if key.help]
        in_chat = [
            (format_keys(each.key.split(",")), each.description)
            for each in Transcript.BINDINGS
            if isinstance(each, Binding)
        ]
        return [*sections, ("Editor", editor), ("In the chat", in_chat), ("Commands", self._commands)]


def _find_keys(defaults: Sequence[BindingType], keymap: Mapping[str, str]) -> dict[str, str]:
    """Return the keys of each binding, by its id."""
    bound = BindingsMap(defaults)
    bound.apply_keymap(dict(keymap))
    found: dict[str, list[str]] = {}
    for key, binding in bound:
        if binding.id is not None:
            found.setdefault(binding.id, []).append(key)
    return {name: format_keys(keys[:MAX_KEYS]) for name, keys in found.items()}


def _draw(sections: Sequence[tuple[str, Sequence[Row]]], width: int) -> Content:
    """Draw two columns; text that does not fit on the right continues below itself."""
    left_width = max(len(left) for _, rows in sections for left, _ in rows) + 2
    lines: list[Content] = []
    for name, rows in sections:
        lines.append(Content.styled(name, "bold $primary"))
        for left, right in rows:
            first, *rest = wrap(right, max(width - left_width - 2, 10)) or [""]
            lines.append(Content.assemble((f"  {left or 'none':{left_width}}", ""), (first, _HELP)))
            lines += [Content.styled(f"{' ' * (left_width + 2)}{more}", _HELP) for more in rest]
        lines.append(Content(""))
    return Content("\n").join(lines[:-1])
