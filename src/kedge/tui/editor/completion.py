"""What could be completed where the cursor is, and what fits: pure, so that every key can ask."""

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

if TYPE_CHECKING:
    from textual.timer import Timer
    from textual.widgets import TextArea

CompletionKind = Literal["file", "command", "argument"]

# An `@` begins a name at the start of a word, as far as the cursor; with a quote, names may have spaces.
_FILE = re.compile(r'(?:^|(?<=\s))@(?:"(?P<quoted>[^"]*)|(?P<plain>[^\s"]*))$')
_COMMAND = re.compile(r"^/(?P<name>[\w:-]*)$")
_ARGUMENT = re.compile(r"^/(?P<name>[\w:-]+)\s+(?P<typed>\S*)$")


class Completion(NamedTuple):
    kind: CompletionKind
    start: int  # the column where what is typed begins, `@` and `/` included
    typed: str
    command: str = ""  # whose argument it is


class Choice(NamedTuple):
    """`value` is what is inserted. One that `goes_on` is not the end: a directory."""

    value: str
    shown: str
    help: str = ""
    goes_on: bool = False


def find_completion(line: str, row: int) -> Completion | None:
    """`line` is the line of the cursor, up to it."""
    if found := _FILE.search(line):
        return Completion("file", found.start(), found["quoted"] if found["plain"] is None else found["plain"])
    if row == 0 and (found := _COMMAND.match(line)):
        return Completion("command", 0, found["name"])
    if row == 0 and (found := _ARGUMENT.match(line)):
        return Completion("argument", found.start("typed"), found["typed"], found["name"])
    return None


def match_commands(typed: str, commands: Iterable[tuple[str, str]]) -> list[Choice]:
    """The one that it names, those that begin like it, then those that hold its letters in their order."""
    wanted = typed.casefold()
    ranked = sorted(
        (name.casefold() != wanted, not name.casefold().startswith(wanted), place, name, about)
        for place, (name, about) in enumerate(commands)
        if _holds(name.casefold(), wanted)
    )
    return [Choice(f"/{name} ", f"/{name}", about) for _, _, _, name, about in ranked]


def match_files(names: Sequence[str]) -> list[Choice]:
    return [Choice(mention(name), name, goes_on=name.endswith("/")) for name in names]


def match_arguments(typed: str, values: Iterable[tuple[str, str]]) -> list[Choice]:
    wanted = typed.casefold()
    fitting = [(value, about) for value, about in values if _holds(value.casefold(), wanted)]
    return [Choice(f"{value} ", value, about) for value, about in fitting]


def mention(name: str) -> str:
    """As it stands in a prompt. The quote of a directory stays open: more of the name follows."""
    if re.search(r"\s", name):
        return f'@"{name}' if name.endswith("/") else f'@"{name}" '
    return f"@{name}" if name.endswith("/") else f"@{name} "


def _holds(text: str, typed: str) -> bool:
    rest = iter(text)
    return all(char in rest for char in typed)


# The list above the editor: what can be taken, one line each. It has no focus; the editor moves it.


MAX_ROWS = 8
MAX_WIDTH = 100
_HELP_FROM = 16  # columns for what is taken, at least: so that helps begin below each other


class Popup(Static):
    can_focus = False

    def __init__(self) -> None:
        super().__init__()
        self.choices: Sequence[Choice] = ()
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
        """Above the editor. The choice stays where it was if it is still there."""
        before = self.chosen
        self.choices = choices
        self._at = next((i for i, each in enumerate(choices) if before and each.value == before.value), 0)
        self._first = 0
        self.display = bool(choices)
        if choices:
            self._place(editor)

    def close(self) -> None:
        self.display = False
        self.choices = ()

    def move(self, by: int, editor: Region) -> None:
        self._at = (self._at + by) % len(self.choices)
        self._place(editor)

    def _place(self, editor: Region) -> None:
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
            column = min(max(_HELP_FROM, *(cell_len(each.shown) for each in self.choices)), width // 2)
            left = set_cell_size(left, column + 2) if cell_len(left) < column + 2 else f"{left}  "
        line = set_cell_size(left + visible_line(choice.help), width)
        if at == self._at:
            return Content.styled(line, "reverse")
        split = len(left)
        return Content.assemble(line[:split], (line[split:], "dim"))


# Completion while somebody types: what fits is asked for after a pause, and what comes too late is not shown.


PAUSE_S = 0.05  # between two keys of somebody who types

Files = Callable[[str], Awaitable[list[str]]]
Arguments = Callable[[str], Awaitable[list[tuple[str, str]]]]
"""Of a command: what may come after it, each with a word of help."""


class Completer:
    def __init__(
        self,
        editor: TextArea,
        files: Files,
        commands: Sequence[tuple[str, str]],
        arguments: Arguments | None,
        recall: Callable[[str], None],
    ) -> None:
        """`recall` puts an earlier prompt into the editor."""
        self.popup = Popup()
        self.commands = commands
        self._editor = editor
        self._files = files
        self._arguments = arguments
        self._recall = recall
        self._wish: Completion | None = None
        self._place: tuple[int, int] | None = None  # row and column of what is being completed
        self._dismissed: tuple[int, int] | None = None
        self._asked = 0  # questions so far: an answer to an older one is not shown
        self._timer: Timer | None = None
        self._search: Callable[[str], list[Choice]] | None = None  # of the history, instead

    @property
    def is_open(self) -> bool:
        return self.popup.is_open

    def follow(self) -> None:
        """The text or the cursor changed."""
        if self._search is not None:
            self._show(self._search(self._editor.text))
            return
        row, column = self._editor.cursor_location
        is_plain = self._editor.selection.is_empty
        wish = find_completion(self._editor.document.get_line(row)[:column], row) if is_plain else None
        if wish is not None and wish == self._wish and self._place == (row, wish.start):
            return
        self._wish = wish
        self._place = None if wish is None else (row, wish.start)
        self._asked += 1
        if wish is None:
            self._dismissed = None
        if wish is None or self._place == self._dismissed:
            self._hide()
        elif wish.kind == "command":
            self._show(match_commands(wish.typed, self.commands))
        else:
            self._ask_soon(PAUSE_S)

    def ask(self) -> bool:
        """At once, because somebody pressed the key for it. Whether there is something to complete."""
        self._dismissed = None
        self._wish = None
        self.follow()
        return self._wish is not None

    def search(self, find: Callable[[str], list[Choice]]) -> None:
        """Choose from the history; what is in the editor says what to look for."""
        self._hide()
        self._search = find
        self._show(find(self._editor.text))
        if not self.is_open:
            self._search = None

    @property
    def is_searching(self) -> bool:
        return self._search is not None

    def dismiss(self) -> None:
        self._dismissed = self._place
        self._search = None
        self._asked += 1
        self._hide()

    def move(self, by: int) -> None:
        self.popup.move(by, self._editor.region)

    def take(self) -> None:
        """Put what is chosen into the text. Of a directory one goes on to what is in it."""
        choice, wish, place = self.popup.chosen, self._wish, self._place
        if choice is None:
            return
        if self._search is not None:
            self.dismiss()
            self._recall(choice.value)
            return
        if wish is None or place is None:
            return
        self._hide()
        row, column = place
        end = self._editor.cursor_location
        rest = self._editor.document.get_line(row)[end[1] :]
        value = choice.value.rstrip(" ") if rest.startswith(" ") and not choice.goes_on else choice.value
        self._editor.replace(value, (row, column), end, maintain_selection_offset=False)
        self._editor.move_cursor((row, column + len(value)))
        if not choice.goes_on:
            self._dismissed = place

    def is_complete(self) -> bool:
        """Whether what is typed is what is chosen: then Enter sends it."""
        choice, wish = self.popup.chosen, self._wish
        return wish is not None and wish.kind == "command" and choice is not None and choice.shown == f"/{wish.typed}"

    def close(self) -> None:
        if self._timer is not None:
            self._timer.stop()

    def _ask_soon(self, pause_s: float) -> None:
        if self._timer is not None:
            self._timer.stop()
        number = self._asked
        self._timer = self._editor.set_timer(pause_s, lambda: self._begin(number))

    def _begin(self, number: int) -> None:
        if number == self._asked and self._wish is not None:
            self._editor.run_worker(self._answer(number, self._wish), group="completion", exclusive=True)

    async def _answer(self, number: int, wish: Completion) -> None:
        try:
            choices = await self._choices(wish)
        except ClientError:
            choices = []  # no server, no names; the banner says so
        if number == self._asked:
            self._show(choices)

    async def _choices(self, wish: Completion) -> list[Choice]:
        if wish.kind == "file":
            return match_files(await self._files(wish.typed))
        if self._arguments is None:
            return []
        return match_arguments(wish.typed, await self._arguments(wish.command))

    def _show(self, choices: list[Choice]) -> None:
        if not choices:
            self.popup.close()
            return
        if not self.popup.is_mounted:
            self._editor.screen.mount(self.popup)
        self.popup.show(choices, self._editor.region)

    def _hide(self) -> None:
        if self._timer is not None:
            self._timer.stop()
            self._timer = None
        self.popup.close()
