"""Completion while somebody types: what fits is asked for after a pause, and what comes too late is not shown."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

from kedge.client.errors import ClientError
from kedge.tui.editor.popup import Popup
from kedge.tui.editor.wishes import Choice, Wish, arguments_for, commands_for, files_for, wish_at

if TYPE_CHECKING:
    from textual.timer import Timer

    from kedge.tui.editor.editor import PromptEditor

PAUSE_S = 0.05  # between two keys of somebody who types

Files = Callable[[str], Awaitable[list[str]]]
Arguments = Callable[[str], Awaitable[list[tuple[str, str]]]]
"""Of a command: what may come after it, each with a word of help."""


class Completer:
    def __init__(
        self, editor: PromptEditor, files: Files, commands: Sequence[tuple[str, str]], arguments: Arguments | None
    ) -> None:
        self.popup = Popup()
        self.commands = commands
        self._editor = editor
        self._files = files
        self._arguments = arguments
        self._wish: Wish | None = None
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
        wish = wish_at(self._editor.document.get_line(row)[:column], row) if is_plain else None
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
            self._show(commands_for(wish.typed, self.commands))
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
            self._editor.recall(choice.value)
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

    async def _answer(self, number: int, wish: Wish) -> None:
        try:
            choices = await self._choices(wish)
        except ClientError:
            choices = []  # no server, no names; the banner says so
        if number == self._asked:
            self._show(choices)

    async def _choices(self, wish: Wish) -> list[Choice]:
        if wish.kind == "file":
            return files_for(await self._files(wish.typed))
        if self._arguments is None:
            return []
        return arguments_for(wish.typed, await self._arguments(wish.command))

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
