"""Dialogs for requests to the user: a permission for a tool call, and questions of the model.

The facts needed to judge a call stand at the top, where a long command cannot push them off the screen.
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
from kedge.tui.dialogs.dialog import GuardedDialog

# Of each line at the top: all of them must leave room for the command. With a diff there are fewer lines, and no text
# below that could hold the rest.
MAX_HEAD_CHARS = 120
MAX_HEAD_CHARS_WITH_DIFF = 400
MIN_SHOWN_LINES = 3
REASON_LABEL = "Needs approval: "
DESCRIPTION_LABEL = "Model's description: "
OMISSION_LABEL = "The diff is incomplete: "
_SCREEN_SHARE = 0.9  # the dialog's part of the screen's height, as in kedge.tcss


class PermissionDialog(GuardedDialog[PermissionAction]):
    BINDINGS = [  # noqa: RUF012 - as Textual has it
        Binding("a,y", "give('allow')", "allow"),
        Binding("s", "give('allow_session')", "allow for this session"),
        Binding("d,n", "give('deny')", "deny"),
        Binding("v", "split", "side by side"),
        *(
            Binding(how.replace("_", ""), f"scroll('{how}')", show=False)
            for how in ("up", "down", "page_up", "page_down", "home", "end")
        ),
    ]

    def __init__(self, request: PermissionRequest) -> None:
        super().__init__(f"Allow {request.tool}?")
        diff = request.params.get("diff")
        self._diff = diff if isinstance(diff, str) else ""
        self._head, details = describe_request(request)
        self._subject = (
            _Diff(self._diff, id="subject")
            if self._diff
            else _Command(Static(details, markup=False), can_focus=False, id="subject")
        )
        self._hidden_lines = Static(id="hidden-lines", markup=False)
        self._hidden_lines.display = False

    @property
    def footer(self) -> str:
        split = " · v split view" if self._diff else ""
        return f"a allow once · s allow for this session · d deny · Esc decide later{split}"

    def body(self) -> ComposeResult:
        yield Static(self._head, markup=False, classes="request")
        yield self._subject
        yield self._hidden_lines

    def on_mount(self) -> None:
        self.set_focus(None)
        for attribute in ("scroll_y", "virtual_size"):
            self.watch(self._subject, attribute, self.show_hidden_lines, init=False)
        self.call_after_refresh(self._fit)

    def on_resize(self) -> None:
        self.call_after_refresh(self._fit)

    def action_give(self, action: PermissionAction) -> None:
        self.dismiss(action)

    def action_split(self) -> None:
        if isinstance(self._subject, DiffView):
            self._subject.toggle_split()

    def action_scroll(self, how: str) -> None:
        getattr(self._subject, f"scroll_{how}")(animate=False)

    def _fit(self) -> None:
        """Limit the height of the command or diff so that its last line and the keys stay on the screen."""
        box = cast("Widget", self._subject.parent)
        others = [each for each in box.children if each not in (self._subject, self._hidden_lines)]
        taken = sum(each.outer_size.height + each.styles.margin.height for each in others) + 1
        room = int(self.size.height * _SCREEN_SHARE) - box.gutter.height - taken
        self._subject.styles.max_height = max(MIN_SHOWN_LINES, room)

    def show_hidden_lines(self) -> None:
        above, most = round(self._subject.scroll_y), self._subject.max_scroll_y
        parts = [f"{most - above} more line{'s' if most - above > 1 else ''} below"] if most > above else []
        parts += [f"{above} above"] if above else []
        self._hidden_lines.display = bool(parts)
        self._hidden_lines.update(f"⋯ {', '.join(parts)} · ↑ ↓ PgUp PgDn to scroll")


class _Diff(DiffView):
    """A diff that reports its size to the dialog."""

    def on_resize(self) -> None:
        cast("PermissionDialog", self.screen).show_hidden_lines()


class _Command(VerticalScroll):
    """A command or other text that reports its size to the dialog."""

    def on_resize(self) -> None:
        cast("PermissionDialog", self.screen).show_hidden_lines()


def describe_request(request: PermissionRequest) -> tuple[str, str]:
    """Return the lines at the top, always visible, and the full text of what the call would do."""
    params = dict(request.params)
    diff = params.pop("diff", None)
    limit = MAX_HEAD_CHARS_WITH_DIFF if diff else MAX_HEAD_CHARS
    rules, label, notes = (params.pop(name, None) for name in ("rules", "label", "notes"))
    description, command = params.pop("description", None), params.pop("command", None)
    directory = params.pop("working_dir", None)
    above = [
        ("", request.description if command is None else None),
        (OMISSION_LABEL, _find_omission(diff)),
        (REASON_LABEL, _shorten_path(_format_value(notes or label), request)),
        (DESCRIPTION_LABEL, description),
        ("“Allow for this session” will remember: ", rules),
        ("Directory: ", directory if directory != "." else None),
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
    subject = [f"$ {_indent_paragraph(command)}"] if isinstance(command, str) else []
    return "\n".join(head), "\n".join([*subject, *below, *details])


def _shorten_path(why: str, request: PermissionRequest) -> str:
    """Return the reason with the path as the tool shows it."""
    shown = request.params.get("path")
    return why.replace(request.path, shown) if request.path and isinstance(shown, str) else why


def _find_omission(diff: Any) -> str:
    """Return the server's remark under a diff that it cut. A line of the file itself would start with a diff mark."""
    last = diff.rstrip("\n").rpartition("\n")[2] if isinstance(diff, str) else ""
    return last.strip("()") if last.startswith("(") else ""


def _indent_paragraph(text: str) -> str:
    """Indent all lines but the first, so that none can pass for a line of the dialog."""
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
