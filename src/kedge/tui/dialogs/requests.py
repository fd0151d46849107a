"""A dialog for the questions of the model."""

from __future__ import annotations

from typing import Any, cast

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widgets import Input, RadioButton, RadioSet, SelectionList, Static

from kedge.protocol.requests import QuestionRequest
from kedge.protocol.text_safety import visible
from kedge.tui.dialogs.dialog import GuardedDialog


class QuestionDialog(GuardedDialog[list[Any]]):
    """Questions as a form: yes or no, one of several, some of several, or text. An empty list: the user skips them."""

    BINDINGS = [  # noqa: RUF012 - as Textual has it
        Binding("ctrl+s", "send", "send", priority=True),
        Binding("ctrl+r", "refuse", "skip", priority=True),
    ]
    FOOTER = "Tab next · Space select · Ctrl+S send · Ctrl+R skip · Esc decide later"

    def __init__(self, request: QuestionRequest) -> None:
        super().__init__("Question" if len(request.questions) == 1 else f"{len(request.questions)} questions")
        self._questions = request.questions

    def body(self) -> ComposeResult:
        with VerticalScroll(can_focus=False):
            for number, question in enumerate(self._questions):
                yield Static(visible(str(question.get("question", ""))), markup=False, classes="question")
                yield from _make_field(number, str(question.get("kind", "text")), _read_options(question))

    def on_mount(self) -> None:
        self.query_one("#answer-0").focus()

    def on_input_submitted(self) -> None:
        if len(self._questions) == 1:
            self.action_send()
        else:
            self.focus_next()

    def action_send(self) -> None:
        self.dismiss([self._answer(number, question) for number, question in enumerate(self._questions)])

    def action_refuse(self) -> None:
        self.dismiss([])

    def _answer(self, number: int, question: dict[str, Any]) -> Any:
        options = _read_options(question)
        match cast("RadioSet | SelectionList[int] | Input", self.query_one(f"#answer-{number}")):
            case RadioSet() as chosen:
                index = chosen.pressed_index
                if question.get("kind") == "yes_no":
                    return None if index < 0 else index == 0
                return options[index] if index >= 0 else None
            case SelectionList() as chosen:
                return [options[index] for index in sorted(chosen.selected)]
            case Input() as typed:
                return typed.value


def _make_field(number: int, kind: str, options: list[str]) -> ComposeResult:
    match kind:
        case "yes_no":
            yield RadioSet(RadioButton("Yes"), RadioButton("No"), id=f"answer-{number}", compact=True)
        case "one":
            yield RadioSet(
                *(RadioButton(Content(visible(each))) for each in options), id=f"answer-{number}", compact=True
            )
        case "many":
            choices = [(Content(visible(each)), index) for index, each in enumerate(options)]
            yield SelectionList[int](*choices, id=f"answer-{number}", compact=True)
        case _:
            yield Input(id=f"answer-{number}", compact=True)


def _read_options(question: dict[str, Any]) -> list[str]:
    return [str(option) for option in cast("list[object]", question.get("options") or [])]
