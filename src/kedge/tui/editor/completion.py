"""Completion of files and commands in the editor, and the popup that shows the choices."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

from rich.cells import cell_len, set_cell_size
from textual.content import Content
from textual.geometry import Region
from textual.widgets import Static

from kedge.client.errors import ClientError
from kedge.protocol.text_safety import visible_line
from kedge.tui.themes import SELECTED

if TYPE_CHECKING:
    from textual.timer import Timer
    from textual.widgets import TextArea

# `@` at the start of a word, up to the cursor; in quotes, the name may contain spaces.
_FILE = re.compile(r'(?:^|(?<=\s))@(?:"(?P<quoted>[^"]*)|(?P<plain>[^\s"]*))$')
_COMMAND = re.compile(r"^/(?P<name>[\w:.-]*)$")


class Completion(NamedTuple):
    kind: Literal["file", "command"]
    start: int  # column of the `@` or `/`
    typed: str


class Choice(NamedTuple):
    """`value` is inserted. A directory `is_partial`: its completion continues with its content."""

    value: str
    shown: str
    help: str = ""
    is_partial: bool = False


def find_completion(line: str, row: int) -> Completion | None:
    """Return what can be completed at the end of `line`, which is the cursor's line up to the cursor."""
    if found := _FILE.search(line):
        return Completion("file", found.start(), found["quoted"] if found["plain"] is None else found["plain"])
    if row == 0 and (found := _COMMAND.match(line)):
        return Completion("command", 0, found["name"])
    return None


def match_commands(typed: str, commands: Iterable[tuple[str, str]]) -> list[Choice]:
    """Return exact matches, then prefixes, then names that contain the letters in order."""
    wanted = typed.casefold()
    ranked = sorted(
        (name.casefold() != wanted, not name.casefold().startswith(wanted), order, name, about)
        for order, (name, about) in enumerate(commands)
        if _is_subsequence(name.casefold(), wanted)
    )
    return [Choice(f"/{name} ", f"/{name}", about) for _, _, _, name, about in ranked]


def format_mention(name: str) -> str:
    """Return the name as a prompt mentions it. The quote of a directory stays open: more of the name follows."""
    if re.search(r"\s", name):
        return f'@"{name}' if name.endswith("/") else f'@"{name}" '
    return f"@{name}" if name.endswith("/") else f"@{name} "


def _is_subsequence(text: str, typed: str) -> bool:
    rest = iter(text)
    return all(char in rest for char in typed)


MAX_ROWS = 8
MAX_WIDTH = 100
_HELP_COLUMN = 16  # least column of the descriptions, so that they line up


class Popup(Static):
    """The list above the editor. It never has the focus; the editor moves its selection."""

    can_focus = False

    def __init__(self) -> None:
        super().__init__()
        self.choices: Sequence[Choice] = ()
        self.is_moved = False  # whether the user moved the selection
        self._at = 0
        self._first = 0  # the row at the top
        self.display = False

    @property
    def is_open(self) -> bool:
        return bool(self.display)

    @property
    def chosen(self) -> Choice | None:
        return self.choices[self._at] if self.is_open and self.choices else None

    def show(self, choices: Sequence[Choice], editor: Region) -> None:
        """Show choices above the editor; one that the user selected stays selected if it is still there."""
        before = self.chosen if self.is_moved else None
        self.is_moved = any(before and each.value == before.value for each in choices)
        self.choices = choices
        self._at = next((i for i, each in enumerate(choices) if before and each.value == before.value), 0)
        self._first = 0
        self.display = bool(choices)
        if choices:
            self._layout(editor)

    def close(self) -> None:
        self.display = False
        self.is_moved = False
        self.choices = ()

    def move(self, by: int, editor: Region) -> None:
        self._at = (self._at + by) % len(self.choices)
        self.is_moved = True
        self._layout(editor)

    def _layout(self, editor: Region) -> None:
        rows = max(1, min(MAX_ROWS, len(self.choices), editor.y))
        self._first = max(0, min(max(self._first, self._at - rows + 1), self._at))
        width = max(1, min(MAX_WIDTH, editor.width))
        self.styles.width, self.styles.height = width, rows
        self.styles.offset = (editor.x, max(0, editor.y - rows))
        self.update(Content("\n").join(self._line(at, width) for at in range(self._first, self._first + rows)))

    def _line(self, at: int, width: int) -> Content:
        choice = self.choices[at]
        left = f" {visible_line(choice.shown)}"
        if choice.help:
            column = min(max(_HELP_COLUMN, *(cell_len(each.shown) for each in self.choices)), width // 2)
            left = set_cell_size(left, column + 2) if cell_len(left) < column + 2 else f"{left}  "
        line = set_cell_size(left + visible_line(choice.help), width)
        if at == self._at:
            return Content.styled(line, SELECTED)
        split = len(left)
        return Content.assemble(line[:split], (line[split:], "$foreground-muted"))


PAUSE_S = 0.05  # of typing, before the server is asked

Files = Callable[[str], Awaitable[list[str]]]


class Completer:
    """Completes the text of `area`, or searches the history, where `recall` gets the chosen entry."""

    def __init__(
        self, area: TextArea, files: Files, commands: Sequence[tuple[str, str]], recall: Callable[[str], None]
    ) -> None:
        self.popup = Popup()
        self.commands = commands
        self._area = area
        self._recall = recall
        self._files = files
        self._completion: Completion | None = None
        self._position: tuple[int, int] | None = None  # row and column of `_completion`
        self._shown_for: Completion | None = None  # the popup's choices are for it; `_completion` may be newer
        self._dismissed: tuple[int, int] | None = None
        self._request = 0  # number of the newest request; answers to older ones are dropped
        self._timer: Timer | None = None
        self._search: Callable[[str], list[Choice]] | None = None  # searches the history instead

    @property
    def is_open(self) -> bool:
        return self.popup.is_open

    def update(self) -> None:
        """Call when the text or the cursor changed."""
        if self._search is not None:
            self._show(self._search(self._area.text))
            return
        row, column = self._area.cursor_location
        is_plain = self._area.selection.is_empty
        completion = find_completion(self._area.document.get_line(row)[:column], row) if is_plain else None
        if completion is not None and completion == self._completion and self._position == (row, completion.start):
            return
        self._completion = completion
        self._position = None if completion is None else (row, completion.start)
        self._request += 1
        if completion is None:
            self._dismissed = None
        if completion is None or self._position == self._dismissed:
            self._hide()
        elif completion.kind == "command":
            self._show(match_commands(completion.typed, self.commands))
        else:
            self._ask_soon()

    def ask(self) -> None:
        """Complete now, also what was dismissed."""
        self._dismissed = None
        self._completion = None
        self.update()

    def search(self, find: Callable[[str], list[Choice]]) -> None:
        """Offer entries of the history that match the text."""
        self._hide()
        self._search = find
        self._show(find(self._area.text))
        if not self.is_open:
            self._search = None

    @property
    def is_searching(self) -> bool:
        return self._search is not None

    def dismiss(self) -> None:
        self._dismissed = self._position
        self._search = None
        self._request += 1
        self._hide()

    def move(self, by: int) -> None:
        self.popup.move(by, self._area.region)

    def accept(self) -> None:
        """Insert the selected choice."""
        choice, completion, position = self.popup.chosen, self._completion, self._position
        if choice is None:
            return
        if self._search is not None:
            self.dismiss()
            self._recall(choice.value)
            return
        if completion is None or position is None:
            return
        self._hide()
        row, column = position
        end = self._area.cursor_location
        rest = self._area.document.get_line(row)[end[1] :]
        value = choice.value.rstrip(" ") if rest.startswith(" ") and not choice.is_partial else choice.value
        self._area.replace(value, (row, column), end, maintain_selection_offset=False)
        self._area.move_cursor((row, column + len(value)))
        if not choice.is_partial:
            self._dismissed = position

    def accept_on_enter(self) -> bool:
        """Insert the selected choice; return False if Enter is to submit the text as typed.

        Events of changes may come later than the key, so the text is read again: an exact name of a command is never
        completed to another unless the user selected that one, and choices for an earlier text are not inserted.
        """
        self.update()
        completion = self._completion
        is_exact = (
            completion is not None
            and completion.kind == "command"
            and any(name == completion.typed for name, _ in self.commands)
        )
        if not self.is_open or (not self.is_searching and self._shown_for != completion):
            return False
        if is_exact and not self.popup.is_moved:
            return False
        self.accept()
        return True

    def close(self) -> None:
        if self._timer is not None:
            self._timer.stop()

    def _ask_soon(self) -> None:
        if self._timer is not None:
            self._timer.stop()
        number = self._request
        self._timer = self._area.set_timer(PAUSE_S, lambda: self._start(number))

    def _start(self, number: int) -> None:
        if number == self._request and self._completion is not None:
            self._area.run_worker(self._load(number, self._completion), group="completion", exclusive=True)

    async def _load(self, number: int, completion: Completion) -> None:
        try:
            names = await self._files(completion.typed)
        except ClientError:
            names = []  # the banner already reports the lost connection
        if number == self._request:
            self._show([Choice(format_mention(name), name, is_partial=name.endswith("/")) for name in names])

    def _show(self, choices: list[Choice]) -> None:
        self._shown_for = self._completion
        if not choices:
            self.popup.close()
            return
        if not self.popup.is_mounted:
            self._area.screen.mount(self.popup)
        self.popup.show(choices, self._area.region)

    def _hide(self) -> None:
        if self._timer is not None:
            self._timer.stop()
            self._timer = None
        self.popup.close()
