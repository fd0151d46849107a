"""What every screen and dialog looks like, in the smallest terminal and in a large one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from textual.screen import ModalScreen

from kedge.tui.dialogs.background import JobsDialog, QueueDialog
from kedge.tui.dialogs.changes import ChangesDialog, DiffDialog
from kedge.tui.dialogs.choices import ConfirmDialog, Palette
from kedge.tui.dialogs.help import HelpDialog
from kedge.tui.dialogs.models import FirstStart, KeyDialog, ModelDialog
from kedge.tui.dialogs.requests import PermissionDialog, QuestionDialog
from kedge.tui.dialogs.sessions import SessionDialog
from tests.tui import snapshots, still
from tests.tui.chat.support import DIFF
from tests.tui.still import Still

SIZES = [(80, 24), (140, 40)]


def no_dialog(app: Still) -> None:
    _ = app.session


def nothing_yet(_: Still) -> None:
    pass


def busy(app: Still) -> None:
    session = app.session
    for each in (still.run("1", "Why?", "running"), still.run("2", "And then write a test for it, with a long rope")):
        session.runs[each.run_id] = each


def lost(app: Still) -> None:
    _ = app.session
    app.sync.state, app.sync.error = "lost", "no server answers"


def told(app: Still) -> None:
    _ = app.session
    app.notify("Answered by another-client: allowed")
    app.chat.hint(
        "Not sent: the disk of the server is full, and nothing was accepted; make room, and press Enter to try again"
    )


def agent(app: Still) -> None:
    _ = app.session
    app.workspace.sessions[still.SESSION] = still.stored_session()
    app.workspace.sessions["s2"] = still.Session(
        id="s2", title="Sound the bay", created_at=0.0, updated_at=0.0, parent_session_id=still.SESSION
    )
    app.workspace.open_session("s2").blocks = list(still.CHAT[:3])
    app.chat.session_id = "s2"


SCREENS: dict[str, Callable[[Still], None]] = {
    "welcome": nothing_yet,
    "chat": no_dialog,
    "busy": busy,
    "lost": lost,
    "told": told,
    "agent": agent,
}


def sessions(app: Still) -> SessionDialog:
    _ = app.session
    for number, title in enumerate(("Ropes and knots", "日本語のとても長い題名" * 6, "")):
        app.workspace.sessions[f"o{number}"] = still.stored_session(f"o{number}", title)
    return SessionDialog(app.api, app.workspace, still.SESSION)


def palette(app: Still) -> Palette:
    key = app.chat.key
    return Palette(
        [(each.name, each.help, key(each.key) if each.key else "") for each in app.chat.commands.all.values()]
    )


def undo(_: Still) -> ConfirmDialog:
    text = (
        "“Why does the anchor drag?”\n\n· src/anchor.py changes\n⚠ notes.txt goes (was changed by somebody else since)"
    )
    return ConfirmDialog(text, [("force", "Undo, and overwrite those"), ("stay", "Leave it as it is")], title="Undo?")


DIALOGS: dict[str, Callable[[Still], ModalScreen[Any]]] = {
    "permission-edit": lambda _: PermissionDialog(still.EDITING),
    "permission-bash": lambda _: PermissionDialog(still.RUNNING),
    "question": lambda _: QuestionDialog(still.QUESTIONS),
    "sessions": sessions,
    "models": lambda _: ModelDialog(still.OFFERED, "harbour/large"),
    "palette": palette,
    "help": lambda app: HelpDialog(
        app.settings.keys, [("/help", "keys and commands"), ("/model [NAME]", "choose a model")]
    ),
    "first": lambda _: FirstStart(still.OFFERED),
    "key": lambda app: KeyDialog(app.api, still.PROVIDER),
    "queue": lambda _: QueueDialog([still.run("1", "Write a test " * 12), still.run("2", "Then rest")]),
    "confirm": undo,
    "changes": lambda app: ChangesDialog(still.StillDesk(app.sync.ready), still.SESSION),
    "diff": lambda _: DiffDialog("src/anchor.py", DIFF),
    "jobs": lambda app: JobsDialog(still.StillDesk(app.sync.ready)),
}


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("name", [*SCREENS, *DIALOGS])
async def test_it_looks_as_it_did(
    name: str, size: tuple[int, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with still.still(tmp_path, monkeypatch, size) as (app, pilot):
        SCREENS.get(name, no_dialog)(app)
        await still.show(app, pilot, DIALOGS[name](app) if name in DIALOGS else None)
        snapshots.check(app, f"{name}-{size[0]}")


@pytest.mark.parametrize("name", ["welcome", "chat", "permission-edit"])
async def test_it_looks_as_it_did_in_the_light(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with still.still(tmp_path, monkeypatch, (140, 40), "textual-light") as (app, pilot):
        SCREENS.get(name, no_dialog)(app)
        await still.show(app, pilot, DIALOGS[name](app) if name in DIALOGS else None)
        snapshots.check(app, f"{name}-light-140")
