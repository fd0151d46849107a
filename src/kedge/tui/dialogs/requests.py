"""Asks for permission. Nothing is chosen at first, and a key typed ahead chooses nothing.

The dialog shows all of what would happen. What a person needs to judge it stands above, where a long command cannot
push it off the screen, and how much is out of sight is always said.
"""

from __future__ import annotations

import json
from typing import Any, cast

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widget import Widget
from textual.widgets import Input, RadioButton, RadioSet, SelectionList, Static

from kedge.protocol.requests import PermissionAction, PermissionRequest, QuestionRequest
from kedge.protocol.text_safety import visible, visible_line, without_blank_runs
from kedge.tui.chat.diffs import DiffView
from kedge.tui.dialogs.dialog import Guarded

# Of each line above: with all of them there must be room for the command, too. With a diff there are fewer of them, and
# no text below in which the rest could stand.
MAX_HEAD_CHARS = 120
MAX_HEAD_CHARS_WITH_DIFF = 400
MIN_SHOWN_LINES = 3
_SHARE = 0.9  # of the screen, as the style has it


class PermissionDialog(Guarded[PermissionAction]):
    BINDINGS = [  # noqa: RUF012 - as Textual has it
        Binding("a,y", "give('allow')", "allow"),
        Binding("s", "give('allow_session')", "allow for this session"),
        Binding("d,n", "give('deny')", "deny"),
        Binding("v", "split", "side by side"),
        *(
            Binding(key, f"scroll('{how}')", show=False)
            for key, how in {
                "up": "up",
                "down": "down",
                "pageup": "page_up",
                "pagedown": "page_down",
                "home": "home",
                "end": "end",
            }.items()
        ),
    ]

    def __init__(self, request: PermissionRequest) -> None:
        super().__init__()
        self.title = f"Allow {request.tool}?"
        diff = request.params.get("diff")
        self._diff = diff if isinstance(diff, str) else ""
        self._head, details = write_texts(request)
        self._deed = (
            _Diff(self._diff, id="deed")
            if self._diff
            else _Command(Static(details, markup=False), can_focus=False, id="deed")
        )
        self._out_of_sight = Static(id="out-of-sight", markup=False)
        self._out_of_sight.display = False

    @property
    def footer(self) -> str:
        split = " · v split" if self._diff else ""
        return f"a allow · s for this session · d deny, and stop · Esc later{split}"

    def body(self) -> ComposeResult:
        yield Static(self._head, markup=False, classes="request")
        yield self._deed
        yield self._out_of_sight

    def on_mount(self) -> None:
        super().on_mount()
        self.set_focus(None)
        for changing in ("scroll_y", "virtual_size"):
            self.watch(self._deed, changing, self.say_what_is_out_of_sight, init=False)
        self.call_after_refresh(self._fit)

    def on_resize(self) -> None:
        self.call_after_refresh(self._fit)

    def action_give(self, action: PermissionAction) -> None:
        self.dismiss(action)

    def action_split(self) -> None:
        if isinstance(self._deed, DiffView):
            self._deed.toggle_split()

    def action_scroll(self, how: str) -> None:
        getattr(self._deed, f"scroll_{how}")(animate=False)

    def _fit(self) -> None:
        """Give the command or diff the room that the rest leaves: its last line and the keys stay on the screen."""
        box = cast("Widget", self._deed.parent)
        others = [each for each in box.children if each not in (self._deed, self._out_of_sight)]
        taken = sum(each.outer_size.height + each.styles.margin.height for each in others) + 1
        room = int(self.size.height * _SHARE) - box.gutter.height - taken
        self._deed.styles.max_height = max(MIN_SHOWN_LINES, room)

    def say_what_is_out_of_sight(self) -> None:
        above, most = round(self._deed.scroll_y), self._deed.max_scroll_y
        parts = [f"{most - above} more line{'s' if most - above > 1 else ''} below"] if most > above else []
        parts += [f"{above} above"] if above else []
        self._out_of_sight.display = bool(parts)
        self._out_of_sight.update(f"⋯ {', '.join(parts)} · ↑ ↓ PgUp PgDn scroll")


class _Diff(DiffView):
    """A diff that tells its dialog when it has its size."""

    def on_resize(self) -> None:
        cast("PermissionDialog", self.screen).say_what_is_out_of_sight()


class _Command(VerticalScroll):
    """A command or other text that tells its dialog when it has its size."""

    def on_resize(self) -> None:
        cast("PermissionDialog", self.screen).say_what_is_out_of_sight()


def write_texts(request: PermissionRequest) -> tuple[str, str]:
    """What stands above, always in sight, and what it would do, in full: nobody allows what they cannot see."""
    params = dict(request.params)
    diff = params.pop("diff", None)
    limit = MAX_HEAD_CHARS_WITH_DIFF if diff else MAX_HEAD_CHARS
    rules, label, notes = (params.pop(name, None) for name in ("rules", "label", "notes"))
    words, command = params.pop("description", None), params.pop("command", None)
    directory = params.pop("working_dir", None)
    above = [
        ("", request.description if command is None else None),
        ("Not all of the change is shown: ", _find_omission(diff)),
        ("Why you are asked: ", _shorten_path(_format_value(notes or label), request)),
        ("The model says: ", words),
        ("s allows for this session: ", rules),
        ("In the directory: ", directory if directory != "." else None),
    ]
    head, details = list[str](), list[str]()
    for name, value in above:
        if text := _format_value(value):
            line = name + visible_line(text)
            rest = len(line) - limit
            head.append(f"{line[:limit]} … ({rest} more characters)" if rest > 0 else line)
            details += ["", name + _indent_paragraph(text)] if rest > 0 else []
    below = [f"{visible_line(name)}: {_indent_paragraph(_format_value(value))}" for name, value in params.items()]
    if request.path and "path" not in params:
        below.append(f"path: {_indent_paragraph(request.path)}")
    deed = [f"$ {_indent_paragraph(command)}"] if isinstance(command, str) else []
    return "\n".join(head), "\n".join([*deed, *below, *details])


def _shorten_path(why: str, request: PermissionRequest) -> str:
    """With the path as the tool shows it."""
    shown = request.params.get("path")
    return why.replace(request.path, shown) if request.path and isinstance(shown, str) else why


def _find_omission(diff: Any) -> str:
    """What the server says under a diff that is too long. A line of a file has a mark before it there."""
    last = diff.rstrip("\n").rpartition("\n")[2] if isinstance(diff, str) else ""
    return last.strip("()") if last.startswith("(") else ""


def _indent_paragraph(text: str) -> str:
    """Its lines after the first are set in: none passes for one of ours."""
    return without_blank_runs(visible(text)).replace("\n", "\n  ")


def _format_value(value: Any) -> str:
    match value:
        case None:
            return ""
        case str():
            return value
        case list():
            return ", ".join(_format_value(each) for each in cast("list[object]", value))
        case _:
            return json.dumps(value, ensure_ascii=False)


class QuestionDialog(Guarded[list[Any]]):
    """An empty list: the person does not want to answer."""

    BINDINGS = [  # noqa: RUF012 - as Textual has it
        Binding("ctrl+s", "send", "send", priority=True),
        Binding("ctrl+r", "refuse", "do not answer", priority=True),
    ]
    FOOTER = "Tab, Space choose · Ctrl+S sends · Ctrl+R declines · Esc later"

    def __init__(self, request: QuestionRequest) -> None:
        super().__init__()
        self.title = "A question" if len(request.questions) == 1 else f"{len(request.questions)} questions"
        self._questions = request.questions

    def body(self) -> ComposeResult:
        with VerticalScroll(can_focus=False):
            for number, question in enumerate(self._questions):
                yield Static(visible(str(question.get("question", ""))), markup=False, classes="question")
                yield from _make_field(number, str(question.get("kind", "text")), _read_options(question))

    def on_mount(self) -> None:
        super().on_mount()
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
