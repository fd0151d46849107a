"""`PermissionDialog`: a permission request above the editor, with the choices and the keys that answer it.

The reasons stand at the top, where a long command cannot push them off the screen. Typed text never answers: letters
that may be text go to the editor.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, cast

from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.widgets import Static

from kedge.protocol.requests import PermissionRequest
from kedge.protocol.text_safety import visible, visible_line, without_blank_runs
from kedge.tui.api import PermissionAnswer
from kedge.tui.chat.diffs import DiffView
from kedge.tui.dialogs.docked import Choice, DockedDialog

# Of each line at the top: all of them must leave room for the command. With a diff there are fewer lines, and no text
# below that could hold the rest.
MAX_HEAD_CHARS = 120
MAX_HEAD_CHARS_WITH_DIFF = 400
MAX_CHOICE_CHARS = 200
MIN_SHOWN_LINES = 3
REASON_LABEL = "Needs approval: "
DESCRIPTION_LABEL = "Model's description: "
OMISSION_LABEL = "The diff is incomplete: "
SESSION_LABEL = "Allow for this session: "
ALWAYS_LABEL = "Always allow"
_SCREEN_SHARE = 0.7  # the most that the dialog takes of the height: the call that it is about must stay visible


class PermissionDialog(DockedDialog):
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
        placeholder = "What should it do instead?"
        super().__init__(list_choices(request), write, key=key, reason=reason, placeholder=placeholder)
        self.request = request
        self._answer = answer
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

    def body(self) -> ComposeResult:
        yield Static(f"Allow {visible_line(self.request.tool)}?", classes="dialog-title", markup=False)
        if self._head:
            yield Static(self._head, markup=False, classes="request")
        yield self._subject
        yield self._hidden_lines

    def on_mount(self) -> None:
        super().on_mount()
        for attribute in ("scroll_y", "virtual_size"):
            self.watch(self._subject, attribute, self.show_hidden_lines, init=False)

    def fit(self) -> None:
        """Limit the height of the command or diff so that its last line and the choices stay on the screen."""
        if not self.is_attached:
            return
        others = [each for each in self.children if each not in (self._subject, self._hidden_lines) and each.display]
        taken = sum(each.outer_size.height + each.styles.margin.height for each in others) + 1
        room = int(self.screen.size.height * _SCREEN_SHARE) - self.gutter.height - taken
        self._subject.styles.max_height = max(1 if self.screen.has_class("-short") else MIN_SHOWN_LINES, room)

    def show_hidden_lines(self) -> None:
        above, most = round(self._subject.scroll_y), self._subject.max_scroll_y
        parts = [f"{most - above} more line{'s' if most - above > 1 else ''} below"] if most > above else []
        parts += [f"{above} above"] if above else []
        self._hidden_lines.display = bool(parts)
        self._hidden_lines.update(f"⋯ {', '.join(parts)} · ↑ ↓ PgUp PgDn to scroll")

    def describe_keys(self) -> str:
        return f"← → select · Enter confirm · Esc decide later{' · v split view' if self._diff else ''}"

    def use_key(self, key: str) -> bool:
        if key == "space":
            self.scroll_text("page_down")
        elif key in ("home", "end") or (key in ("up", "down") and self._subject.max_scroll_y > 0):
            self.scroll_text(key)
        else:
            return False
        return True

    def has_use_for(self, letter: str) -> bool:
        return letter == "v" and self._diff != ""

    def use_letter(self, letter: str) -> bool:
        if not self.has_use_for(letter):
            return False
        cast("DiffView", self._subject).toggle_split()
        return True

    def scroll_text(self, how: str) -> None:
        """Scroll the command or diff: `up`, `down`, `page_up`, `page_down`, `home` or `end`."""
        getattr(self._subject, f"scroll_{how}")(animate=False)

    def take_choice(self, choice: Choice, reason: str) -> None:
        self._answer(PermissionAnswer(choice.value, reason))

    def postpone(self) -> None:
        self._answer(None)


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
        label = _shorten(ALWAYS_LABEL + where + visible_line(rules), MAX_CHOICE_CHARS)
        choices.append(Choice("w", label, "allow_always", needs_enter=True))  # it changes the configuration
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
