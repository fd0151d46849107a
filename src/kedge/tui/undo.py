"""Undo, redo, going back to a prompt, and fork. All but a fork first show which files they will change."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from kedge.client.errors import ClientError, Refused
from kedge.http.http1 import escape
from kedge.protocol.files import FileStep, Restore, Rewound, Timeline
from kedge.protocol.obstacles import UNSURE
from kedge.protocol.text_safety import visible
from kedge.tui.dialogs.dialog import ConfirmDialog
from kedge.tui.dialogs.rewind import RewindDialog, TimelineDialog, describe_step

if TYPE_CHECKING:
    from kedge.tui.port import Chat

SHOWN = 12
_DONE: dict[Restore, str] = {"both": "", "files": ", files only", "conversation": ", conversation only"}


async def rewind(screen: Chat, session_id: str, what: str, message_id: str | None = None) -> None:
    """Undo from a message on (by default the last prompt), or redo; ask first."""
    where = {"message_id": message_id} if message_id else {}
    target = f"/sessions/{escape(session_id)}/{what}"
    try:
        plan = await screen.api.call("POST", target, {**where, "dry_run": True}, type=Rewound)
        choice = await screen.interface.ask(_make_dialog(what, plan, has_kinds=message_id is not None))
        if choice is None or choice == "stay":
            return
        body = _read_choice(choice)
        done = await screen.api.call_once("POST", target, {**where, **body}, type=Rewound)
    except ClientError as error:
        is_busy = isinstance(error, Refused) and error.code == "session_busy"
        screen.hint("Cancel the running turn first (Esc Esc), or wait until it ends" if is_busy else str(error))
        return
    screen.open_session(session_id)
    restore: Restore = body.get("restore", "both")
    if what == "undo" and done.prompt and restore != "files" and not screen.editor.text.startswith(done.prompt):
        screen.editor.put_back(done.prompt)
    screen.notify(f"{'Undone' if what == 'undo' else 'Redone'}{_DONE[restore]}: {_summarize(done.files, restore)}")


async def pick_prompt(screen: Chat, session_id: str) -> None:
    """Let the user choose a prompt and what to restore, and go back to before it."""
    try:
        timeline = await _read_timeline(screen, session_id)
    except ClientError as error:
        screen.hint(str(error))
        return
    if not any(turn.state == "current" for turn in timeline.turns):
        screen.hint("No prompt to go back to yet")
        return
    message_id = await screen.interface.ask(RewindDialog(timeline, partial(_preview, screen, session_id)))
    if message_id is not None:
        await rewind(screen, session_id, "undo", message_id)


async def show_timeline(screen: Chat, session_id: str) -> None:
    try:
        timeline = await _read_timeline(screen, session_id)
    except ClientError as error:
        screen.hint(str(error))
    else:
        await screen.interface.ask(TimelineDialog(timeline))


async def fork(screen: Chat, session_id: str) -> None:
    try:
        done = await screen.api.call_once("POST", f"/sessions/{escape(session_id)}/fork", {}, type=Rewound)
    except ClientError as error:
        screen.hint(str(error))
        return
    screen.open_session(done.id)
    screen.notify("Forked. Files were not changed.")


async def _read_timeline(screen: Chat, session_id: str) -> Timeline:
    return await screen.api.call("GET", f"/sessions/{escape(session_id)}/timeline", type=Timeline)


async def _preview(screen: Chat, session_id: str, message_id: str) -> Rewound:
    body = {"message_id": message_id, "dry_run": True}
    return await screen.api.call("POST", f"/sessions/{escape(session_id)}/undo", body, type=Rewound)


def _make_dialog(what: str, plan: Rewound, *, has_kinds: bool) -> ConfirmDialog:
    lines = [f"“{visible(plan.prompt[:200])}”", ""] if plan.prompt else []
    lines += [describe_step(step) for step in plan.files[:SHOWN]] or ["No file changes."]
    if len(plan.files) > SHOWN:
        lines.append(f"and {len(plan.files) - SHOWN} more files")
    lines += [visible(note) for note in plan.notes]
    is_refused = any(step.obstacle and step.obstacle not in UNSURE for step in plan.files)
    has_unsure = any(step.obstacle in UNSURE for step in plan.files)
    if what == "undo" and has_unsure:
        lines.append("Files marked ? may contain your own work and are not changed.")
    if what == "redo":
        return ConfirmDialog("\n".join(lines), [("both", "Redo"), ("stay", "Cancel")], title="Redo?")
    force = " force" if is_refused else ""
    overwrites = ", and overwrite later changes (redo restores them)" if is_refused else ""
    choices: list[tuple[str, str]] = []
    if not has_kinds:
        choices.append((f"both{force}", f"Undo{overwrites}"))
        if has_unsure:
            choices.append((f"both{force} unsure", "Undo, including the files marked ?"))
        return ConfirmDialog("\n".join(lines), [*choices, ("stay", "Cancel")], title="Undo?")
    if plan.files:
        choices += [
            (f"both{force}", f"Restore files and conversation{overwrites}"),
            (f"files{force}", f"Restore files only{overwrites}"),
        ]
        if has_unsure:
            choices.append((f"both{force} unsure", "Restore files and conversation, including the files marked ?"))
            choices.append((f"files{force} unsure", "Restore files only, including the files marked ?"))
    choices.append(("conversation", "Restore conversation only" if plan.files else "Go back in the conversation"))
    return ConfirmDialog("\n".join(lines), [*choices, ("stay", "Cancel")], title="Go back to before this prompt?")


def _read_choice(choice: str) -> dict[str, Any]:
    """Return the body of the request for an id of `_make_dialog`."""
    kind, *options = choice.split()
    body: dict[str, Any] = {} if kind == "both" else {"restore": kind}
    if "force" in options:
        body["force"] = True
    if "unsure" in options:
        body["include_unsure"] = True
    return body


def _summarize(files: list[FileStep], restore: Restore) -> str:
    if restore == "conversation":
        return "files stay as they are"
    skipped = sum(step.obstacle in UNSURE for step in files)
    changed = len(files) - skipped
    text = "no files changed" if not changed else f"{changed} file{'' if changed == 1 else 's'} changed"
    return f"{text}, {skipped} skipped" if skipped else text
