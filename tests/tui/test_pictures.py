"""What every screen and dialog looks like, in the smallest terminal and in a large one."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from textual.screen import ModalScreen

from kedge.protocol.requests import PermissionRequest
from kedge.tui.dialogs.background import JobsDialog
from kedge.tui.dialogs.changes import ChangesDialog, DiffDialog
from kedge.tui.dialogs.dialog import ConfirmDialog, Palette
from kedge.tui.dialogs.help import HelpDialog
from kedge.tui.dialogs.models import FirstStart, KeyDialog, ModelDialog
from kedge.tui.dialogs.queue import QueueDialog
from kedge.tui.dialogs.requests import QuestionDialog
from kedge.tui.dialogs.sessions import SessionDialog
from kedge.tui.dialogs.themes import ThemeDialog
from tests.tui import offline_app, snapshots
from tests.tui.chat.support import DIFF
from tests.tui.offline_app import OfflineApp

SIZES = [(60, 20), (80, 24), (140, 40)]


def no_dialog(app: OfflineApp) -> None:
    _ = app.session


def nothing_yet(_: OfflineApp) -> None:
    pass


def busy(app: OfflineApp) -> None:
    session = app.session
    for each in (
        offline_app.run("1", "Why?", "running"),
        offline_app.run("2", "And then write a test for it, with a long rope"),
    ):
        session.runs[each.run_id] = each


def lost(app: OfflineApp) -> None:
    _ = app.session
    app.sync.state, app.sync.error = "lost", "no server answers"


def told(app: OfflineApp) -> None:
    _ = app.session
    app.notify("Answered by another-client: allowed")
    app.chat.hint(
        "Not sent: the disk of the server is full, and nothing was accepted; make room, and press Enter to try again"
    )


def agent(app: OfflineApp) -> None:
    _ = app.session
    app.workspace.sessions[offline_app.SESSION] = offline_app.stored_session()
    app.workspace.sessions["s2"] = offline_app.Session(
        id="s2", title="Sound the bay", created_at=0.0, updated_at=0.0, parent_session_id=offline_app.SESSION
    )
    app.workspace.open_session("s2").blocks = list(offline_app.CHAT[:3])
    app.chat.session_id = "s2"


def ask(request: PermissionRequest, app: OfflineApp) -> None:
    busy(app)
    app.workspace.requests[request.id] = request


SCREENS: dict[str, Callable[[OfflineApp], None]] = {
    "welcome": nothing_yet,
    "chat": no_dialog,
    "busy": busy,
    "lost": lost,
    "told": told,
    "agent": agent,
    "permission-edit": partial(ask, offline_app.EDITING),
    "permission-bash": partial(ask, offline_app.RUNNING),
    "permission-long": partial(ask, offline_app.LONG),
}


def sessions(app: OfflineApp) -> SessionDialog:
    _ = app.session
    for number, title in enumerate(("Ropes and knots", "日本語のとても長い題名" * 6, "")):
        app.workspace.sessions[f"o{number}"] = offline_app.stored_session(f"o{number}", title)
    return SessionDialog(app.api, app.workspace, offline_app.SESSION)


def palette(app: OfflineApp) -> Palette:
    key = app.chat.key
    return Palette(
        [(each.name, each.help, key(each.key) if each.key else "") for each in app.chat.commands.all.values()]
    )


def undo(_: OfflineApp) -> ConfirmDialog:
    text = (
        "“Why does the anchor drag?”\n\n· src/anchor.py changes\n⚠ notes.txt goes (was changed by somebody else since)"
    )
    return ConfirmDialog(text, [("force", "Undo, and overwrite those"), ("stay", "Leave it as it is")], title="Undo?")


DIALOGS: dict[str, Callable[[OfflineApp], ModalScreen[Any]]] = {
    "question": lambda _: QuestionDialog(offline_app.QUESTIONS),
    "sessions": sessions,
    "models": lambda _: ModelDialog(offline_app.OFFERED, "harbour/large"),
    "palette": palette,
    "help": lambda app: HelpDialog(
        app.settings.keys, [("/help", "keys and commands"), ("/model [NAME]", "choose a model")]
    ),
    "first": lambda _: FirstStart(offline_app.OFFERED),
    "key": lambda app: KeyDialog(app.api, offline_app.PROVIDER),
    "queue": lambda app: QueueDialog(
        app.api, "s", [offline_app.run("1", "Write a test " * 12), offline_app.run("2", "Then rest")]
    ),
    "confirm": undo,
    "changes": lambda app: ChangesDialog(offline_app.OfflineApi(app.sync.ready), offline_app.SESSION),
    "themes": lambda app: ThemeDialog(app.available_themes, "auto", app.show_theme),
    "diff": lambda _: DiffDialog("src/anchor.py", DIFF),
    "jobs": lambda app: JobsDialog(offline_app.OfflineApi(app.sync.ready)),
}


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("name", [*SCREENS, *DIALOGS])
async def test_it_looks_as_it_did(
    name: str, size: tuple[int, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with offline_app.open_app(tmp_path, monkeypatch, size) as (app, pilot):
        SCREENS.get(name, no_dialog)(app)
        await offline_app.show(app, pilot, DIALOGS[name](app) if name in DIALOGS else None)
        snapshots.check(app, f"{name}-{size[0]}")


@pytest.mark.parametrize("name", ["welcome", "chat", "permission-edit", "permission-bash", "permission-long"])
async def test_it_looks_as_it_did_in_the_largest_terminal(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with offline_app.open_app(tmp_path, monkeypatch, (200, 60)) as (app, pilot):
        SCREENS[name](app)
        await offline_app.show(app, pilot, None)
        snapshots.check(app, f"{name}-200")


@pytest.mark.parametrize("name", ["welcome", "chat", "permission-edit"])
async def test_it_looks_as_it_did_in_the_light(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with offline_app.open_app(tmp_path, monkeypatch, (140, 40), "kedge-light") as (app, pilot):
        SCREENS.get(name, no_dialog)(app)
        await offline_app.show(app, pilot, DIALOGS[name](app) if name in DIALOGS else None)
        snapshots.check(app, f"{name}-light-140")
