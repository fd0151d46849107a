"""Undo, redo and fork. Undo and redo first show which files they will change."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kedge.client.errors import ClientError
from kedge.http.http1 import escape
from kedge.protocol.files import FileStep, Rewound
from kedge.protocol.obstacles import UNSURE, describe_obstacle
from kedge.protocol.text_safety import visible
from kedge.tui.dialogs.dialog import ConfirmDialog

if TYPE_CHECKING:
    from kedge.tui.port import Chat

SHOWN = 12
_BODIES: dict[str, dict[str, Any]] = {
    "go": {},
    "force": {"force": True},
    "all": {"include_unsure": True},
    "force all": {"force": True, "include_unsure": True},
}
_EFFECTS = {"created": "will be restored", "modified": "will be changed", "deleted": "will be deleted"}


async def rewind(screen: Chat, session_id: str, what: str) -> None:
    target = f"/sessions/{escape(session_id)}/{what}"
    try:
        plan = await screen.api.call("POST", target, {"dry_run": True}, type=Rewound)
        choice = await screen.interface.ask(_make_dialog(what, plan))
        if choice not in _BODIES:
            return
        done = await screen.api.call_once("POST", target, _BODIES[choice], type=Rewound)
    except ClientError as error:
        screen.hint(str(error))
        return
    screen.open_session(session_id)
    if what == "undo" and done.prompt and not screen.editor.text:
        screen.editor.put_back(done.prompt)
    screen.notify(f"{'Undone' if what == 'undo' else 'Redone'}: {_summarize(done.files)}")


async def fork(screen: Chat, session_id: str) -> None:
    try:
        done = await screen.api.call_once("POST", f"/sessions/{escape(session_id)}/fork", {}, type=Rewound)
    except ClientError as error:
        screen.hint(str(error))
        return
    screen.open_session(done.id)
    screen.notify("Forked. Files were not changed.")


def _make_dialog(what: str, plan: Rewound) -> ConfirmDialog:
    lines = [f"“{visible(plan.prompt[:200])}”", ""] if plan.prompt else []
    lines += [_describe(step) for step in plan.files[:SHOWN]] or ["No file changes."]
    if len(plan.files) > SHOWN:
        lines.append(f"and {len(plan.files) - SHOWN} more files")
    lines += [visible(note) for note in plan.notes]
    choices = [("go", what.capitalize()), ("stay", "Cancel")]
    is_refused = any(step.obstacle and step.obstacle not in UNSURE for step in plan.files)
    if what == "undo" and is_refused:
        choices[0] = ("force", "Undo and overwrite them (redo restores them)")
    if what == "undo" and any(step.obstacle in UNSURE for step in plan.files):
        lines.append("Files marked ? may contain your own work and are not changed.")
        choices.insert(1, ("force all" if is_refused else "all", "Undo, including the files marked ?"))
    return ConfirmDialog("\n".join(lines), choices, title=f"{what.capitalize()}?")


def _describe(step: FileStep) -> str:
    if step.obstacle in UNSURE:
        return f"? {visible(step.path)} is not changed ({describe_obstacle(step.obstacle)})"
    left = f" ({describe_obstacle(step.obstacle)})" if step.obstacle else ""
    return f"{'⚠' if step.obstacle else '·'} {visible(step.path)} {_EFFECTS[step.status]}{left}"


def _summarize(files: list[FileStep]) -> str:
    skipped = sum(step.obstacle in UNSURE for step in files)
    changed = len(files) - skipped
    text = "no files changed" if not changed else f"{changed} file{'' if changed == 1 else 's'} changed"
    return f"{text}, {skipped} skipped" if skipped else text
