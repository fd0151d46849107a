"""Asks for leave. Nothing is chosen at first, and a key typed ahead chooses nothing."""

from __future__ import annotations

import json
from typing import cast

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import VerticalScroll
from textual.widgets import Static

from kedge.protocol.requests import PermissionAction, PermissionRequest
from kedge.protocol.text_safety import visible
from kedge.tui.chat.diffs import DiffView
from kedge.tui.dialogs.dialog import Guarded


class PermissionDialog(Guarded[PermissionAction]):
    BINDINGS = [  # noqa: RUF012 - as Textual has it
        Binding("a,y", "give('allow')", "allow"),
        Binding("s", "give('allow_session')", "allow for this session"),
        Binding("d,n", "give('deny')", "deny"),
        Binding("v", "split", "side by side"),
    ]

    def __init__(self, request: PermissionRequest) -> None:
        super().__init__()
        self.title = f"Allow {request.tool}?"
        self._request = request
        self._diff = request.params.get("diff")

    @property
    def footer(self) -> str:
        split = " · v split" if self._diff else ""
        return f"a allow · s for this session · d deny, and stop · Esc later{split}"

    def body(self) -> ComposeResult:
        request = self._request
        yield Static(visible(request.description), markup=False, classes="request")
        if isinstance(self._diff, str) and self._diff:
            yield DiffView(self._diff)
        else:
            with VerticalScroll(can_focus=False):
                yield Static(_details(request), markup=False, classes="details")

    def on_mount(self) -> None:
        super().on_mount()
        self.set_focus(None)

    def action_give(self, action: PermissionAction) -> None:
        self.dismiss(action)

    def action_split(self) -> None:
        for view in self.query(DiffView):
            view.toggle_split()


def _details(request: PermissionRequest) -> str:
    """What it would do, in full: nobody allows what they cannot see."""
    params = dict(request.params)
    rules, why = params.pop("rules", None), params.pop("notes", None) or params.get("label")
    for known in ("label", "description", "diff"):
        params.pop(known, None)
    command = params.pop("command", None)
    lines = [f"$ {command}", ""] if isinstance(command, str) else []
    if params.get("working_dir") == ".":
        del params["working_dir"]
    lines += [f"{name}: {_shown(value)}" for name, value in params.items()]
    if request.path and "path" not in params:
        lines.append(f"path: {request.path}")
    lines += [f"why you are asked: {_shown(why)}"] if why else []
    lines += [f"for this session would also allow: {_shown(rules)}"] if rules else []
    return visible("\n".join(lines))


def _shown(value: object) -> str:
    match value:
        case str():
            return value
        case list():
            return ", ".join(_shown(each) for each in cast("list[object]", value))
        case _:
            return json.dumps(value, ensure_ascii=False)
