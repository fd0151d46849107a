"""A form for the questions of the model: marks show what is answered, and every question takes words of one's own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, cast

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.message import Message
from textual.widgets import Input, Static

from kedge.protocol.requests import QuestionRequest
from kedge.protocol.text_safety import visible
from kedge.tui.dialogs.dialog import GuardedDialog

OWN_WORDS = "Other, in my own words"
NONE_OF_THEM = "None of them"
AROUND_LINES = 9  # of the frame, the title, the note, the buttons and the keys
MIN_LINES = 4


class FilledIn(NamedTuple):
    """What is filled in for one question: numbers of the chosen rows, and the words."""

    chosen: frozenset[int] = frozenset()
    words: str = ""


class QuestionDialog(GuardedDialog[list[Any]]):
    """Questions as a form: yes or no, one of several, some of several, or text. An empty list: the user skips them."""

    BINDINGS = [  # noqa: RUF012 - as Textual has it
        Binding("ctrl+s", "send", "send", priority=True),
        Binding("ctrl+r", "refuse", "skip", priority=True),
    ]
    FOOTER = "↑↓ Tab move · Space select · Enter next · Ctrl+S send · Ctrl+R skip · Esc decide later"

    def __init__(self, request: QuestionRequest, filled_in: Sequence[FilledIn] = ()) -> None:
        count = len(request.questions)
        super().__init__("Question" if count == 1 else f"{count} questions")
        given = [*filled_in, *[FilledIn()] * count]
        self._fields = [
            QuestionField(question, given[at], partial(self._go_on, at))
            for at, question in enumerate(request.questions)
        ]
        self._is_warned = False  # whether the user knows what is not answered

    def body(self) -> ComposeResult:
        with VerticalScroll(can_focus=False):
            yield from self._fields
        yield Static(id="unanswered", markup=False)
        with Horizontal(id="question-buttons"):
            yield _Button("Send", self.action_send)
            yield _Button("Skip", self.action_refuse)

    def on_mount(self) -> None:
        super().on_mount()
        self._show_unanswered()
        self._fields[0].focus_field()

    def on_resize(self) -> None:
        """Leave room for what stands around the questions: the keys must be visible in small terminals, too."""
        self.query_one(VerticalScroll).styles.max_height = max(MIN_LINES, self.size.height * 9 // 10 - AROUND_LINES)

    @property
    def filled_in(self) -> list[FilledIn]:
        return [field.filled_in for field in self._fields]

    def on_question_field_changed(self) -> None:
        self._is_warned = False
        self._show_unanswered()

    def action_send(self) -> None:
        """Send the answers; if some are missing, say so first."""
        missing = [field for field in self._fields if field.answer is None]
        if missing and not self._is_warned:
            self._is_warned = True
            self._show_unanswered()
            missing[0].focus_field()
            return
        self.dismiss([field.answer for field in self._fields])

    def action_refuse(self) -> None:
        self.dismiss([])

    def _go_on(self, at: int) -> None:
        """Go to the next question without an answer, else to the button; the only question is sent."""
        if len(self._fields) == 1:
            self.action_send()
            return
        rest = [*self._fields[at + 1 :], *self._fields[: at + 1]]
        following = next((field for field in rest if field.answer is None), None)
        if following is not None:
            following.focus_field()
        else:
            self.query(_Button).first().focus()

    def _show_unanswered(self) -> None:
        missing = sum(field.answer is None for field in self._fields)
        note = self.query_one("#unanswered", Static)
        note.display = bool(missing)
        if missing:
            count = len(self._fields)
            what = "Not answered yet" if count == 1 else f"{missing} of {count} not answered yet"
            note.update(f"⚠ {what}. Ctrl+S again sends it like this." if self._is_warned else what)
            note.set_class(self._is_warned, "-warning")


class QuestionField(Vertical):
    """One question with its rows, and a line for the words of the user."""

    class Changed(Message):
        pass

    def __init__(self, question: dict[str, Any], given: FilledIn, go_on: Callable[[], None]) -> None:
        super().__init__(classes="question-field")
        self._text = visible(str(question.get("question", "")))
        self._kind = str(question.get("kind", "text"))
        self._options = ["Yes", "No"] if self._kind == "yes_no" else _read_options(question)
        self._go_on = go_on
        labels = [*self._options, *([NONE_OF_THEM] if self._kind == "many" else []), OWN_WORDS]
        self._own = len(labels) - 1  # the row for the user's words
        self._rows: _Rows | None = None
        if self._options:
            self._rows = _Rows(labels, self._choose, self._leave, is_many=self._kind == "many")
            self._rows.chosen = set(given.chosen)
        self._words = Input(given.words, placeholder="Your answer", compact=True)

    def compose(self) -> ComposeResult:
        yield Static(classes="question", markup=False)
        if self._rows is not None:
            yield self._rows
        yield self._words

    def on_mount(self) -> None:
        self._draw()

    def on_descendant_focus(self) -> None:
        self.scroll_visible(animate=False)  # with the question above

    def focus_field(self) -> None:
        (self._rows or self._words).focus()

    @property
    def filled_in(self) -> FilledIn:
        return FilledIn(frozenset(self._rows.chosen if self._rows else ()), self._words.value)

    @property
    def answer(self) -> Any:
        """The answer as it is sent; None if there is none yet."""
        words = self._words.value.strip()
        if self._rows is None:
            return words or None
        chosen = sorted(self._rows.chosen)
        picked: list[Any] = [self._options[row] for row in chosen if row < len(self._options)]
        if self._own in chosen and words:
            picked.append(words)
        match self._kind:
            case "many":
                return picked if picked or chosen not in ([], [self._own]) else None
            case "yes_no" if chosen in ([0], [1]):
                return chosen == [0]
            case _:
                return picked[0] if picked else None

    def _choose(self, row: int) -> None:
        assert self._rows is not None
        chosen = self._rows.chosen
        if self._kind != "many":
            chosen = {row}
        elif row == len(self._options):
            chosen = chosen ^ {row} if chosen <= {row} else {row}
        else:
            chosen = (chosen ^ {row}) - {len(self._options)}
        self._rows.chosen = chosen
        self._draw()
        if row == self._own and row in chosen:
            self._words.focus()
        self.post_message(self.Changed())

    def _leave(self, row: int) -> None:
        """Enter in a row: take it, unless others are taken, and go on."""
        assert self._rows is not None
        if self._kind != "many" or not self._rows.chosen:
            self._choose(row)
        if row != self._own:
            self._go_on()

    def on_input_changed(self, event: Input.Changed) -> None:
        event.stop()
        self._draw()
        self.post_message(self.Changed())

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        self._go_on()

    def _draw(self) -> None:
        rows = self._rows
        self._words.display = rows is None or self._own in rows.chosen
        is_answered = self.answer is not None
        state = ("✓ ", "$text-success") if is_answered else ("? ", "$text-warning")
        ending = ("", "") if is_answered else ("  (not answered)", "not bold $text-muted")
        self.query_one(".question", Static).update(Content.assemble(state, self._text, ending))
        if rows is not None:
            rows.draw()


class _Rows(Vertical, can_focus=True):
    """Rows with a mark each; an arrow shows where the cursor is, only while they have the focus."""

    def __init__(
        self, labels: Sequence[str], choose: Callable[[int], None], leave: Callable[[int], None], *, is_many: bool
    ) -> None:
        super().__init__(classes="question-rows")
        self.chosen: set[int] = set()
        self._labels = labels
        self._choose = choose
        self._leave = leave
        self._marks = ("[ ]", "[x]") if is_many else ("( )", "(•)")
        self._cursor = 0

    def compose(self) -> ComposeResult:
        for at in range(len(self._labels)):
            yield _Row(partial(self._click, at))

    def on_mount(self) -> None:
        self.draw()

    def draw(self) -> None:
        for at, row in enumerate(self.query(_Row)):
            is_chosen = at in self.chosen
            arrow = "▸" if self.has_focus and at == self._cursor else " "
            style = "bold" if is_chosen else ""
            mark = Content.assemble((f"{arrow} ", "bold $text-primary"), (f"{self._marks[is_chosen]} ", style))
            row.update(Content.assemble(mark, (visible(self._labels[at]), style)))

    def on_focus(self) -> None:
        self.draw()

    def on_blur(self) -> None:
        self.draw()

    def _click(self, at: int) -> None:
        self._cursor = at
        self.focus()
        self._choose(at)

    def on_key(self, event: events.Key) -> None:
        match event.key:
            case "up" | "down":
                self._move(-1 if event.key == "up" else +1)
            case "space":
                self._choose(self._cursor)
            case "enter":
                self._leave(self._cursor)
            case _:
                return
        event.stop()
        event.prevent_default()

    def _move(self, by: int) -> None:
        moved = self._cursor + by
        if 0 <= moved < len(self._labels):
            self._cursor = moved
            self.draw()
            list(self.query(_Row))[moved].scroll_visible(animate=False)
        elif by > 0:
            self.screen.focus_next()
        else:
            self.screen.focus_previous()


class _Row(Static):
    def __init__(self, click: Callable[[], None]) -> None:
        super().__init__(markup=False)
        self._click = click

    def on_click(self, event: events.Click) -> None:
        event.stop()
        self._click()


class _Button(Static, can_focus=True):
    def __init__(self, label: str, press: Callable[[], None]) -> None:
        super().__init__(markup=False, classes="question-button")
        self._label = label
        self._press = press

    def on_mount(self) -> None:
        self._draw()

    def _draw(self) -> None:
        self.update(Content.styled(f"▸[ {self._label} ]" if self.has_focus else f" [ {self._label} ]", "bold"))

    def on_focus(self) -> None:
        self._draw()

    def on_blur(self) -> None:
        self._draw()

    def on_click(self) -> None:
        self._press()

    def on_key(self, event: events.Key) -> None:
        if event.key in ("enter", "space"):
            event.stop()
            self._press()


def _read_options(question: dict[str, Any]) -> list[str]:
    return [str(option) for option in cast("list[object]", question.get("options") or [])]
