"""`DockedDialog`: a dialog above the editor with choices, which takes no text from somebody who types.

Typed text never answers: letters that may be text go to the editor.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from textual import events, on
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Input, Static

from kedge.tui.themes import SELECTED

HOLD_S = 0.8  # a letter answers if no other follows within this time, also of a slow typist; else both are text


class Choice(NamedTuple):
    keys: str  # letters
    label: str
    value: Any
    asks_reason: bool = False
    needs_enter: bool = False  # a letter alone only selects it


class DockedDialog(Vertical, can_focus=True):
    """`write` puts text into the editor. Subclasses say what a choice does, and may use more keys."""

    FOOTER = ""

    def __init__(
        self, choices: Sequence[Choice], write: Callable[[str], None], *, key: str, reason: str, placeholder: str
    ) -> None:
        super().__init__()
        self._choices = choices
        self._write = write
        self._key = key
        self._list = _ChoiceList(self._choices, self._choose)
        self.reason = Input(reason, placeholder=placeholder, id="reason", compact=True)
        self.reason.display = False
        self._footer = Static(classes="dialog-footer", markup=False)
        self._held = ""  # a letter that answers unless more text follows
        self._timer: asyncio.TimerHandle | None = None

    def compose(self) -> ComposeResult:
        yield from self.body()
        yield self._list
        yield self.reason
        yield self._footer

    def on_mount(self) -> None:
        self._show_footer(is_focused=False)
        self.call_after_refresh(self.fit)

    def on_resize(self) -> None:
        self.fit()  # on a slow terminal, what was called after a refresh may come before the layout

    # for subclasses

    def body(self) -> ComposeResult:
        yield from ()

    def take_choice(self, choice: Choice, reason: str) -> None:
        raise NotImplementedError

    def postpone(self) -> None:
        raise NotImplementedError

    def fit(self) -> None:
        """Adapt to the size of the screen."""

    def scroll_text(self, how: str) -> None:
        """Scroll the text: `up`, `down`, `page_up`, `page_down`, `home` or `end`."""

    def use_key(self, key: str) -> bool:
        """Use a key that no choice uses; return whether it was used."""
        del key
        return False

    def use_letter(self, letter: str) -> bool:
        """Use a letter that no choice has, when no other followed it; return whether there is a use for it."""
        del letter
        return False

    def has_use_for(self, letter: str) -> bool:
        del letter
        return False

    # drawing

    def _show_footer(self, *, is_focused: bool) -> None:
        if self.reason.display:
            text = "Enter send · Esc back"
        else:
            text = self.describe_keys() if is_focused else f"{self._key} to answer"
        self._footer.update(text)

    def describe_keys(self) -> str:
        return self.FOOTER

    def on_focus(self) -> None:
        self._show_footer(is_focused=True)

    def on_blur(self) -> None:
        if self._release() or not self.reason.display:
            self._list.select(None)
        self._show_footer(is_focused=False)

    # keys

    @property
    def is_in_use(self) -> bool:
        """Whether keys go to the dialog, not to the editor."""
        return self.has_focus or self.reason.has_focus

    def on_key(self, event: events.Key) -> None:
        if self.reason.has_focus:
            if event.key == "escape":
                event.stop()
                self._close_reason()
            return
        if self._take_key(event):
            event.stop()
            event.prevent_default()

    def _take_key(self, event: events.Key) -> bool:
        held = self._release()
        char = event.character if event.is_printable else None
        if char is not None and (held or not self.has_focus):  # not has_focus: typed on, the editor has it by now
            self._list.select(None)  # the held letter was text: no later Enter may confirm its choice
            self._write(held + char)
            return True
        match event.key:
            case "enter":
                self._confirm()
            case "escape" if held:
                self._list.select(None)
            case "escape":
                self.postpone()
            case "right" | "tab":
                self._list.move(+1)
            case "left":
                self._list.move(-1)
            case key if self.use_key(key):
                pass
            case "up" | "down":
                self._list.move(+1 if event.key == "down" else -1)
            case _ if char is not None:
                self._take_letter(char)
            case _:
                return held != ""
        return True

    def _take_letter(self, char: str) -> None:
        if not self.has_use_for(char):
            if (index := next((i for i, each in enumerate(self._choices) if char in each.keys), None)) is None:
                self._write(char)
                return
            self._list.select(index)
        self._held = char
        self._footer.update("Enter answers now · type on to write a prompt instead · Esc cancel")
        # Not a timer of Textual, which skips its call if the machine is so busy that it comes late.
        self._timer = asyncio.get_running_loop().call_later(HOLD_S, self.call_later, self._use_held)

    def _use_held(self) -> None:
        held = self._release()  # not held: more text came just before
        if held and not self.use_letter(held) and not self._needs_enter():
            self._confirm()

    def _needs_enter(self) -> bool:
        selected = self._list.selected
        return selected is not None and self._choices[selected].needs_enter

    def _release(self) -> str:
        held, self._held = self._held, ""
        if held:
            self._show_footer(is_focused=self.has_focus)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        return held

    def on_paste(self, event: events.Paste) -> None:
        event.stop()
        held = self._release()
        self._list.select(None)
        self._write(held + event.text)

    # answers

    def _confirm(self) -> None:
        if self._list.selected is not None:
            self._choose(self._list.selected)

    def _choose(self, index: int) -> None:
        choice = self._choices[index]
        self._list.select(index)
        if choice.asks_reason:
            self.reason.display = True
            self.screen.set_focus(self.reason)
            self.call_after_refresh(self.fit)
        else:
            self.take_choice(choice, "")

    def _close_reason(self) -> None:
        self.reason.display = False
        self.screen.set_focus(self)

    @on(Input.Submitted)
    def _send_reason(self, event: Input.Submitted) -> None:
        event.stop()
        if event.value.strip():
            self.take_choice(next(each for each in self._choices if each.asks_reason), event.value.strip())


class _ChoiceList(Vertical):
    """The choices, one below the other; a click chooses."""

    def __init__(self, choices: Sequence[Choice], choose: Callable[[int], None]) -> None:
        super().__init__(classes="choices")
        self._lines = [_ChoiceLine(choice, partial(choose, index)) for index, choice in enumerate(choices)]
        self.selected: int | None = None  # nothing at first: Enter typed ahead does no harm

    def compose(self) -> ComposeResult:
        yield from self._lines

    def select(self, index: int | None) -> None:
        self.selected = index
        for at, line in enumerate(self._lines):
            line.draw(is_selected=at == index)

    def move(self, by: int) -> None:
        first = 0 if by > 0 else len(self._lines) - 1
        self.select(first if self.selected is None else (self.selected + by) % len(self._lines))


class _ChoiceLine(Static):
    def __init__(self, choice: Choice, choose: Callable[[], None]) -> None:
        super().__init__()
        self._choice = choice
        self._choose = choose

    def on_mount(self) -> None:
        self.draw(is_selected=False)

    def draw(self, *, is_selected: bool) -> None:
        mark, style = ("▸", SELECTED) if is_selected else (" ", "")
        key = (self._choice.keys[0], "bold $text-primary")
        self.update(Content.assemble(f"{mark} ", key, "  ", (self._choice.label, style)))

    def on_click(self, event: events.Click) -> None:
        event.stop()
        self._choose()
