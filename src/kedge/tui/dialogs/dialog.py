"""The base of all dialogs, a box with a title and a footer that Esc closes; a confirmation; a list to choose from."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from rich.cells import cell_len
from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.content import Content
from textual.geometry import Size
from textual.screen import ModalScreen
from textual.widget import Widget
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from kedge.protocol.text_safety import visible_line
from kedge.tui.formats import one_line, pad

T = TypeVar("T")
# Keys that follow the opening of a dialog, or each other, more closely than this were not meant for the dialog.
QUIET_S = 0.6


MIN_ABOUT = 8  # cells of a description in a list
MAX_WIDTH, FRAME_CELLS = 100, 5  # of most dialogs, as in the style sheet; border, padding and scrollbar


class Dialog(ModalScreen[T]):
    """Subclasses yield their widgets in `body()`; `FOOTER` lists the keys."""

    BINDINGS = [  # noqa: RUF012 - as Textual has it
        Binding("escape", "close", "close", show=False),
        Binding("ctrl+c", "close", "close", show=False, priority=True),
    ]
    FOOTER = "Esc close"

    def __init__(self, title: str = "") -> None:
        super().__init__()
        self.title = title

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            if self.title:
                yield Static(visible_line(self.title), classes="dialog-title", markup=False)
            yield from self.body()
            yield Static(self.footer, classes="dialog-footer", markup=False)

    @property
    def footer(self) -> str:
        return self.FOOTER

    def body(self) -> ComposeResult:
        yield Widget()

    def limit_list(self) -> None:
        """Limit the list below a field to half of the screen.

        In cells: for its own height the box ignores a relative maximum, and would have blank lines at its end.
        """
        self.query_one(OptionList).styles.max_height = max(self.app.size.height // 2, 1)

    def action_close(self) -> None:
        self.dismiss(None)


class GuardedDialog(Dialog[T]):
    """A dialog that opens by itself. It takes keys only after a pause: text typed ahead must not become an answer."""

    def __init__(self, title: str) -> None:
        super().__init__(title)
        self._last_key_at = time.monotonic()
        self._is_awake = False

    def on_mount(self) -> None:
        self._last_key_at = time.monotonic()  # visible from now on

    def accepts_key(self, key: str) -> bool:
        """Called with each key before any widget gets it. Esc is always accepted: it only postpones the answer."""
        now = time.monotonic()
        self._is_awake = self._is_awake or now - self._last_key_at >= QUIET_S
        self._last_key_at = now
        return self._is_awake or key == "escape"


MIN_COLUMNS, MIN_LINES = 60, 20


def is_too_small(size: Size) -> bool:
    """Whether dialogs would not fit the terminal."""
    return size.width < MIN_COLUMNS or size.height < MIN_LINES


class TooSmall(GuardedDialog[None]):
    """Covers everything while the terminal is too small. What is typed goes to the editor, and nothing answers."""

    def __init__(self) -> None:
        super().__init__("")

    def compose(self) -> ComposeResult:
        yield Static(markup=False)

    def on_resize(self, event: events.Resize) -> None:
        size = event.size
        self.query_one(Static).update(
            f"Terminal too small ({size.width} by {size.height})\nMake it {MIN_COLUMNS} by {MIN_LINES} or larger."
        )
        self._leave_if_large()

    def on_screen_resume(self) -> None:
        self._leave_if_large()

    def _leave_if_large(self) -> None:
        if self.is_current and not is_too_small(self.app.size):
            self.dismiss(None)

    def accepts_key(self, key: str) -> bool:
        return False

    def action_close(self) -> None:
        pass


Item = tuple[str, str, str]  # name, description, key


class ConfirmDialog(Dialog[str]):
    """The last choice must be the harmless one: it is highlighted, so that Enter typed ahead does no harm."""

    FOOTER = "Enter select · Esc close"

    def __init__(self, text: str, choices: Sequence[tuple[str, str]], title: str = "") -> None:
        super().__init__(title)
        self._text = text
        self._choices = choices

    def body(self) -> ComposeResult:
        yield Static(self._text, markup=False)
        yield Static("")
        yield OptionList(*(Option(label, id=value) for value, label in self._choices), markup=False)

    def on_mount(self) -> None:
        self.query_one(OptionList).highlighted = len(self._choices) - 1

    @on(OptionList.OptionSelected)
    def _select(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(event.option_id)


class QuitDialog(ConfirmDialog):
    """Whoever types on wants to stay: the text goes to the editor by `write`."""

    def __init__(self, text: str, choices: Sequence[tuple[str, str]], write: Callable[[str], None]) -> None:
        super().__init__(text, choices)
        self._write = write

    def on_key(self, event: events.Key) -> None:
        if event.is_printable and event.character and event.key != "space":
            event.stop()
            self._write(event.character)
            self.dismiss("stay")


class FilterDialog(Dialog[T]):
    """A list with a field to filter it. Subclasses give the options, and the result for an option's id."""

    FOOTER = "Type to filter · Enter select · Esc close"

    def find_options(self, typed: str) -> tuple[list[Option], int]:
        """Return the options that match the text, and the index of the one to highlight."""
        raise NotImplementedError

    def make_result(self, option_id: str) -> T:
        raise NotImplementedError

    def body(self) -> ComposeResult:
        yield Input(placeholder="Filter", compact=True)
        yield OptionList(markup=False)

    def on_mount(self) -> None:
        self.query_one(Input).focus()
        self._show("")

    def on_resize(self) -> None:
        self.limit_list()

    def _show(self, typed: str) -> None:
        found, highlighted = self.find_options(typed)
        options = self.query_one(OptionList)
        options.clear_options()
        options.add_options(found)
        options.highlighted = highlighted if found else None

    @on(Input.Changed)
    def _filter(self, event: Input.Changed) -> None:
        self._show(event.value)

    @on(Input.Submitted)
    def _submit(self) -> None:
        self.query_one(OptionList).action_select()

    @on(OptionList.OptionSelected)
    def _select(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(self.make_result(event.option_id or ""))

    def on_key(self, event: events.Key) -> None:
        options = self.query_one(OptionList)
        moves = {
            "up": options.action_cursor_up,
            "down": options.action_cursor_down,
            "pageup": options.action_page_up,
            "pagedown": options.action_page_down,
        }
        if move := moves.get(event.key):
            event.stop()
            move()


class Palette(FilterDialog[str]):
    """The command palette, and every other choice of one name."""

    def __init__(self, items: Sequence[Item], title: str = "Commands") -> None:
        super().__init__(title)
        self._items = items

    def find_options(self, typed: str) -> tuple[list[Option], int]:
        """Items with every typed word in name or description; names that begin with the text come first."""
        words, start = typed.casefold().split(), typed.strip().casefold()
        found = [item for item in self._items if all(word in f"{item[0]} {item[1]}".casefold() for word in words)]
        if words:
            found.sort(key=lambda item: not item[0].casefold().startswith(start))
        return [Option(row, id=item[0]) for item, row in zip(found, self._draw_rows(found), strict=True)], 0

    def _draw_rows(self, items: Sequence[Item]) -> list[Content]:
        """Draw the items in columns, which are those of all items: they do not move while the user types."""
        names, abouts, keys = (max((cell_len(each[column]) for each in self._items), default=0) for column in range(3))
        room = min(self.app.size.width * 9 // 10, MAX_WIDTH) - FRAME_CELLS - names - keys - 4
        abouts = max(min(abouts, room), MIN_ABOUT)
        return [_draw_item(item, names, abouts) for item in items]

    def make_result(self, option_id: str) -> str:
        return option_id


def _draw_item(item: Item, name_cells: int, about_cells: int) -> Content:
    name, about, key = (visible_line(text) for text in item)
    return Content.assemble(
        (pad(name, name_cells), "bold"),
        "  ",
        (pad(one_line(about, about_cells), about_cells), "$foreground-muted"),
        (f"  {key}" if key else "", "$text-primary"),
    )
