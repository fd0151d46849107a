"""A list to choose from by typing: the command palette, and every other choice of one name."""

from __future__ import annotations

from collections.abc import Sequence

from textual import events, on
from textual.app import ComposeResult
from textual.content import Content
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from kedge.protocol.text_safety import visible_line
from kedge.tui.dialogs.dialog import Dialog


class ConfirmDialog(Dialog[str]):
    """The last choice is the harmless one, and the one that is lit."""

    FOOTER = "Enter chooses · Esc closes"

    def __init__(self, text: str, choices: Sequence[tuple[str, str]], title: str = "") -> None:
        super().__init__()
        self._text = text
        self._choices = choices
        self.title = title

    def body(self) -> ComposeResult:
        yield Static(self._text, markup=False)
        yield Static("")
        yield OptionList(*(Option(label, id=value) for value, label in self._choices), markup=False)

    def on_mount(self) -> None:
        self.query_one(OptionList).highlighted = len(self._choices) - 1

    @on(OptionList.OptionSelected)
    def _chosen(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(event.option_id)


Item = tuple[str, str, str]  # what is chosen, what it does, its key


class Palette(Dialog[str]):
    FOOTER = "type to filter · ↑↓ · Enter chooses · Esc closes"

    def __init__(self, items: Sequence[Item], title: str = "Commands") -> None:
        super().__init__()
        self._items = items
        self.title = title

    def body(self) -> ComposeResult:
        yield Input(placeholder="filter", compact=True)
        yield OptionList(*self._options(""), markup=False)

    def on_mount(self) -> None:
        self.query_one(Input).focus()
        self.query_one(OptionList).highlighted = 0

    @on(Input.Changed)
    def _filter(self, event: Input.Changed) -> None:
        found = self.query_one(OptionList)
        found.clear_options()
        found.add_options(self._options(event.value))
        found.highlighted = 0 if found.option_count else None

    @on(Input.Submitted)
    def _take(self) -> None:
        self.query_one(OptionList).action_select()

    @on(OptionList.OptionSelected)
    def _chosen(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(event.option_id)

    def on_key(self, event: events.Key) -> None:
        found = self.query_one(OptionList)
        moves = {
            "up": found.action_cursor_up,
            "down": found.action_cursor_down,
            "pageup": found.action_page_up,
            "pagedown": found.action_page_down,
        }
        if move := moves.get(event.key):
            event.stop()
            move()

    def _options(self, typed: str) -> list[Option]:
        width = max((len(name) for name, _, _ in self._items), default=0)
        return [Option(_draw_item(item, width), id=item[0]) for item in find_matching(self._items, typed)]


def find_matching(items: Sequence[Item], typed: str) -> list[Item]:
    """Those that have every word, in name or help; the names that begin with it first."""
    wanted = typed.casefold().split()
    found = [item for item in items if all(word in f"{item[0]} {item[1]}".casefold() for word in wanted)]
    return (
        sorted(found, key=lambda item: not item[0].casefold().startswith(typed.strip().casefold())) if wanted else found
    )


def _draw_item(item: Item, width: int) -> Content:
    name, help_text, key = item
    return Content.assemble(
        (f"{visible_line(name):<{width}}", "bold"),
        ("  ", ""),
        (visible_line(help_text), "$foreground-muted"),
        (f"  {key}" if key else "", "$accent"),
    )
