"""`PermissionDialog`: a permission request above the editor, with the choices and the keys that answer it.

The reasons stand at the top, where a long command cannot push them off the screen. Typed text never answers: letters
that may be text go to the editor.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, cast

from textual import events, on
from textual.app import ComposeResult
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.widgets import Input, Static

from kedge.protocol.requests import PermissionAction, PermissionRequest
from kedge.protocol.text_safety import visible, visible_line, without_blank_runs
from kedge.tui.api import PermissionAnswer
from kedge.tui.chat.diffs import DiffView
from kedge.tui.themes import SELECTED

# Of each line at the top: all of them must leave room for the command. With a diff there are fewer lines, and no text
# below that could hold the rest.
MAX_HEAD_CHARS = 120
MAX_HEAD_CHARS_WITH_DIFF = 400
MAX_CHOICE_CHARS = 200
MIN_SHOWN_LINES = 3
HOLD_S = 0.3  # a letter answers if no other follows within this time; else both are text
REASON_LABEL = "Needs approval: "
DESCRIPTION_LABEL = "Model's description: "
OMISSION_LABEL = "The diff is incomplete: "
SESSION_LABEL = "Allow for this session: "
ALWAYS_LABEL = "Always allow"
_SCREEN_SHARE = 0.7  # the most that the dialog takes of the height: the call that it is about must stay visible


class Choice(NamedTuple):
    keys: str  # letters
    label: str
    action: PermissionAction
    asks_reason: bool = False


class PermissionDialog(Vertical, can_focus=True):
    """Calls `answer` with the answer, or with None: the user decides later. `write` puts text into the editor."""

    def __init__(
        self,
        request: PermissionRequest,
        answer: Callable[[PermissionAnswer | None], None],
        write: Callable[[str], None],
        *,
        key: str = "F2",
        reason: str = "",
    ) -> None:
        super().__init__()
        self.request = request
        self._answer = answer
        self._write = write
        self._key = key
        diff = request.params.get("diff")
        self._diff = diff if isinstance(diff, str) else ""
        self._choices = list_choices(request)
        self._head, details = describe_request(request)
        self._subject = (
            _Diff(self._diff, id="subject")
            if self._diff
            else _Command(Static(details, markup=False), can_focus=False, id="subject")
        )
        self._hidden_lines = Static(id="hidden-lines", markup=False)
        self._hidden_lines.display = False
        self._list = _ChoiceList(self._choices, self._choose)
        self.reason = Input(reason, placeholder="What should it do instead?", id="reason", compact=True)
        self.reason.display = False
        self._footer = Static(classes="dialog-footer", markup=False)
        self._held = ""  # a letter that answers unless more text follows
        self._timer: asyncio.TimerHandle | None = None

    def compose(self) -> ComposeResult:
        yield Static(f"Allow {visible_line(self.request.tool)}?", classes="dialog-title", markup=False)
        if self._head:
            yield Static(self._head, markup=False, classes="request")
        yield self._subject
        yield self._hidden_lines
        yield self._list
        yield self.reason
        yield self._footer

    def on_mount(self) -> None:
        self._show_footer(is_focused=False)
        for attribute in ("scroll_y", "virtual_size"):
            self.watch(self._subject, attribute, self.show_hidden_lines, init=False)
        self.call_after_refresh(self.fit)

    # drawing

    def fit(self) -> None:
        """Limit the height of the command or diff so that its last line and the choices stay on the screen."""
        if not self.is_attached:
            return
        others = [each for each in self.children if each not in (self._subject, self._hidden_lines) and each.display]
        taken = sum(each.outer_size.height + each.styles.margin.height for each in others) + 1
        room = int(self.screen.size.height * _SCREEN_SHARE) - self.gutter.height - taken
        self._subject.styles.max_height = max(1 if self.screen.has_class("-short") else MIN_SHOWN_LINES, room)

    def on_resize(self) -> None:
        self.fit()  # on a slow terminal, what was called after a refresh may come before the layout

    def show_hidden_lines(self) -> None:
        above, most = round(self._subject.scroll_y), self._subject.max_scroll_y
        parts = [f"{most - above} more line{'s' if most - above > 1 else ''} below"] if most > above else []
        parts += [f"{above} above"] if above else []
        self._hidden_lines.display = bool(parts)
        self._hidden_lines.update(f"⋯ {', '.join(parts)} · ↑ ↓ PgUp PgDn to scroll")

    def _show_footer(self, *, is_focused: bool) -> None:
        if self.reason.display:
            text = "Enter send · Esc back"
        elif is_focused:
            text = f"← → select · Enter confirm · Esc decide later{' · v split view' if self._diff else ''}"
        else:
            text = f"{self._key} to answer"
        self._footer.update(text)

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
        can_scroll = self._subject.max_scroll_y > 0
        match event.key:
            case "enter":
                self._confirm()
            case "escape" if held:
                self._list.select(None)
            case "escape":
                self._answer(None)
            case "right" | "tab":
                self._list.move(+1)
            case "left":
                self._list.move(-1)
            case "up" | "down" if not can_scroll:
                self._list.move(+1 if event.key == "down" else -1)
            case "up" | "down" | "home" | "end":
                self.scroll_text(event.key)
            case "space":
                self.scroll_text("page_down")
            case _ if char is not None:
                self._take_letter(char)
            case _:
                return held != ""
        return True

    def _take_letter(self, char: str) -> None:
        if char == "v" and self._diff:
            pass
        elif (index := next((i for i, each in enumerate(self._choices) if char in each.keys), None)) is None:
            self._write(char)
            return
        else:
            self._list.select(index)
        self._held = char
        # Not a timer of Textual, which skips its call if the machine is so busy that it comes late.
        self._timer = asyncio.get_running_loop().call_later(HOLD_S, self.call_later, self._use_held)

    def _use_held(self) -> None:
        held = self._release()
        if held == "v":
            cast("DiffView", self._subject).toggle_split()
        elif held and not self._needs_enter():  # not held: more text came just before
            self._confirm()

    def _needs_enter(self) -> bool:
        """Whether the selected choice changes the configuration: a letter alone only selects it."""
        selected = self._list.selected
        return selected is not None and self._choices[selected].action == "allow_always"

    def _release(self) -> str:
        held, self._held = self._held, ""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        return held

    def on_paste(self, event: events.Paste) -> None:
        event.stop()
        held = self._release()
        self._list.select(None)
        self._write(held + event.text)

    def scroll_text(self, how: str) -> None:
        """Scroll the command or diff: `up`, `down`, `page_up`, `page_down`, `home` or `end`."""
        getattr(self._subject, f"scroll_{how}")(animate=False)

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
            self._answer(PermissionAnswer(choice.action))

    def _close_reason(self) -> None:
        self.reason.display = False
        self.screen.set_focus(self)

    @on(Input.Submitted)
    def _send_reason(self, event: Input.Submitted) -> None:
        event.stop()
        if event.value.strip():
            self._answer(PermissionAnswer("deny", event.value.strip()))


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


class _Diff(DiffView, can_focus=False):
    """A diff that reports its size to the dialog."""

    def on_resize(self) -> None:
        cast("PermissionDialog", self.parent).show_hidden_lines()


class _Command(VerticalScroll):
    """A command or other text that reports its size to the dialog."""

    def on_resize(self) -> None:
        cast("PermissionDialog", self.parent).show_hidden_lines()


def list_choices(request: PermissionRequest) -> list[Choice]:
    """Return the possible answers. Without rules nothing would be remembered: then only this call can be allowed."""
    choices = [Choice("ay", "Allow once", "allow")]
    params = request.params
    if "rules" not in params:  # not about a call: the request says what the session would remember
        choices.append(Choice("s", "Allow for this session", "allow_session"))
    elif rules := _format_value(params["rules"]):
        choices.append(Choice("s", _shorten(SESSION_LABEL + visible_line(rules), MAX_CHOICE_CHARS), "allow_session"))
    if rules := _format_value(params.get("always_rules")):
        where = ": " if _are_paths(params["always_rules"]) else ", in every directory: "
        choices.append(
            Choice("w", _shorten(ALWAYS_LABEL + where + visible_line(rules), MAX_CHOICE_CHARS), "allow_always")
        )
    choices.append(Choice("dn", "Deny, and end the turn", "deny"))
    if "rules" in params:
        choices.append(Choice("r", "Deny with a reason, and let the model go on", "deny", asks_reason=True))
    return choices


def _are_paths(rules: Any) -> bool:
    """Whether all rules name files by their absolute paths, so that they mean the same in every directory."""
    return all(str(rule).startswith(("edit(/", "edit(~/", "view(/")) for rule in rules)


def describe_request(request: PermissionRequest) -> tuple[str, str]:
    """Return the lines at the top, always visible, and the full text of what the call would do."""
    params = dict(request.params)
    diff = params.pop("diff", None)
    limit = MAX_HEAD_CHARS_WITH_DIFF if diff else MAX_HEAD_CHARS
    rules, always_rules = params.pop("rules", None), params.pop("always_rules", None)
    label, notes = params.pop("label", None), params.pop("notes", None)
    description, command = params.pop("description", None), params.pop("command", None)
    directory = params.pop("working_dir", None)
    above = [
        (REASON_LABEL, _shorten_path(_format_value(notes or label), request)),
        (OMISSION_LABEL, _find_omission(diff)),
        ("", request.description if command is None and not diff else None),
        (DESCRIPTION_LABEL, description),
        ("Directory: ", directory if directory != "." else None),
    ]
    head, details = list[str](), list[str]()
    for name, value in above:
        if text := _format_value(value):
            line = name + visible_line(text)
            head.append(_shorten(line, limit))
            details += ["", name + _indent_paragraph(text)] if len(line) > limit else []
    for name, value in ((SESSION_LABEL, rules), (f"{ALWAYS_LABEL}: ", always_rules)):  # the choices show their start
        if len(name + visible_line(text := _format_value(value))) > MAX_CHOICE_CHARS - 20:
            details += ["", name + _indent_paragraph(text)]
    below = [f"{visible_line(name)}: {_indent_paragraph(_format_value(value))}" for name, value in params.items()]
    if request.path and "path" not in params:
        below.append(f"path: {_indent_paragraph(request.path)}")
    subject = [f"$ {_indent_paragraph(command)}"] if isinstance(command, str) else []
    return "\n".join(head), "\n".join([*subject, *below, *details])


def _shorten(line: str, limit: int) -> str:
    rest = len(line) - limit
    return f"{line[:limit]} … ({rest} more characters)" if rest > 0 else line


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
