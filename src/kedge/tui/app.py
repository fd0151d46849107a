"""The terminal interface as an application: its life, what it is connected with, and the model it works with."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from textual import events, on, work
from textual.app import App
from textual.binding import BindingType
from textual.driver import Driver
from textual.notifications import SeverityLevel
from textual.screen import ModalScreen

from kedge.client.errors import ClientError, SpawnRefused
from kedge.protocol.text_safety import pasted_text, visible
from kedge.tui import terminal
from kedge.tui.api import Api
from kedge.tui.dialogs.dialog import GuardedDialog
from kedge.tui.reactions import Announcer, react
from kedge.tui.screen import ChatScreen
from kedge.tui.settings import Launch, Settings
from kedge.tui.state.session import SessionState
from kedge.tui.state.workspace import WorkspaceState
from kedge.tui.sync import Sync
from kedge.tui.terminal import TerminalDriver

if TYPE_CHECKING:
    from kedge.client import AsyncClient

T = TypeVar("T")
JOIN_S = 1.0  # of one try to join: the link tries again, and nobody who leaves waits longer for it


class KedgeApp(App[int]):
    CSS_PATH = "kedge.tcss"
    TITLE = "kedge"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = []

    def __init__(self, launch: Launch, told: terminal.Told = terminal.SILENT) -> None:
        super().__init__(driver_class=TerminalDriver)
        self.launch = launch
        self.settings = Settings()
        self.workspace = WorkspaceState(partial(react, self))
        self.sync = Sync(self.workspace, self._connect, self._changed)
        self.api = Api(self.sync.ready)
        self.chat = ChatScreen(self.workspace, self.sync, self.api, mode=launch.mode)
        self.problem: SpawnRefused | None = None  # why there is no server to look at
        self._told = told
        self._announcer = Announcer(self)
        self._linking: asyncio.Task[None] | None = None

    def get_default_screen(self) -> ChatScreen:
        return self.chat

    def on_mount(self) -> None:
        self.theme = self._own_theme
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self.exit, 128 + number)
        self.call_after_refresh(self._link_up)

    def _link_up(self) -> None:
        """After the first picture: what speaks HTTP takes as long to import as half of the rest."""
        self.run_worker(self._stay_linked(), group="link", exit_on_error=True)
        self._begin()

    async def _stay_linked(self) -> None:
        self._linking = asyncio.current_task()
        try:
            await self.sync.run()
        except SpawnRefused as error:
            self.problem = error
            self.exit()

    async def on_unmount(self) -> None:
        if self._linking is not None:  # its connections are closed before the loop is
            self._linking.cancel()
            await asyncio.wait({self._linking})
        self._announcer.clear()

    @property
    def _own_theme(self) -> str:
        return "textual-light" if self._told.is_light else "textual-dark"

    # the beginning

    async def _connect(self) -> AsyncClient:
        from kedge.client import AsyncClient

        launch = self.launch
        client = await AsyncClient.connect(
            launch.directory,
            host=launch.host,
            data_dir=launch.data_dir,
            token_file=launch.token_file,
            name="tui",
            give_up_s=JOIN_S,
        )
        return AsyncClient(client.transport, client.workspace)  # which has as much patience as others

    @work(group="begin")
    async def _begin(self) -> None:
        if self._told.typed:
            self.chat.editor.insert(pasted_text(self._told.typed.decode(errors="ignore")))
        try:
            await self._read_settings()
            session_id = self.launch.session_id
            if session_id is None and self.launch.is_continued:
                latest = await self.api.latest_session()
                session_id = latest.id if latest else None
            if session_id is not None:
                self.chat.open_session(session_id)
            if not await self.choose_model():
                from kedge.tui.pickers import first_start

                await first_start(self)
        except ClientError as error:
            self.notify(str(error), severity="error")

    async def _read_settings(self) -> None:
        self.settings = Settings.read(await self.api.config())
        self.chat.commands.add(await self.api.user_commands())
        self.set_keymap(dict(self.settings.keys))
        if not self.chat.is_mode_chosen:
            self.chat.mode = self.settings.mode
        theme = self.settings.theme
        self.theme = theme if theme in self.available_themes else self._own_theme
        if theme not in ("auto", self.theme):
            self.chat.hint(f"tui.theme: there is no theme {theme!r}; /theme lists what there is")
        if self.settings.unknown:
            self.chat.hint(
                f"[tui.keys] has no action {', '.join(self.settings.unknown)}; {self.chat.key('help')} lists them"
            )
        self._changed()

    # models

    async def choose_model(self) -> bool:
        """Find out which model the next prompt goes to; whether there is one."""
        from kedge.tui.pickers import current

        offered = await self.api.offered()
        session = self.workspace.sessions.get(self.chat.session_id or "")
        found = current(offered, self.launch.model, session.model if session else None)
        self.chat.model = found.name if found.is_ready else ""
        self.chat.window = found.context_window
        self._changed()
        return found.is_ready

    @work(group="dialog")
    async def pick_model(self, name: str = "") -> None:
        from kedge.tui.pickers import pick_model

        await self._try(pick_model(self, name))

    @work(group="dialog")
    async def log_in(self, provider: str = "") -> None:
        from kedge.tui.dialogs.models import KeyDialog
        from kedge.tui.pickers import log_in

        if not any(isinstance(screen, KeyDialog) for screen in self.screen_stack):
            await self._try(log_in(self, provider))

    async def _try(self, asked: Awaitable[object]) -> None:
        """And see which model there is afterwards."""
        try:
            await asked
            await self.choose_model()
        except ClientError as error:
            self.chat.hint(str(error))

    @work(group="dialog")
    async def pick_theme(self, name: str = "") -> None:
        from kedge.tui.pickers import pick_theme

        await pick_theme(self, name)

    async def ask(self, dialog: ModalScreen[T]) -> T | None:
        """What a dialog was answered; None: it was closed."""
        return await self.push_screen_wait(dialog)

    # what happens

    def _changed(self) -> None:
        self.chat.changed()

    def read(self, reading: Callable[[], Awaitable[None]]) -> None:
        """Beside all else."""

        async def quietly() -> None:
            try:
                await reading()
            except ClientError:
                pass  # without a server there is nothing to read; the link reads all again when there is one

        self.run_worker(quietly, group="reading")

    @work(group="model", exclusive=True)
    async def see_model(self) -> None:
        """Another session is looked at: it may have another model."""
        try:
            await self.choose_model()
        except ClientError as error:
            self.chat.hint(str(error))

    @work(group="settings", exclusive=True)
    async def reread(self) -> None:
        try:
            await self._read_settings()
            await self.choose_model()
        except ClientError:
            pass  # read again when there is a server

    async def on_event(self, event: events.Event) -> None:
        if isinstance(event, events.Key):
            self.chat.pressed(event.key)
            if isinstance(self.screen, GuardedDialog) and not self.screen.accepts_key(event.key):
                return
        await super().on_event(event)

    def on_app_focus(self, _: events.AppFocus) -> None:
        self._announcer.is_looked_at = True

    def on_app_blur(self, _: events.AppBlur) -> None:
        self._announcer.is_looked_at = False

    def notify(
        self,
        message: str,
        *,
        title: str = "",
        severity: SeverityLevel = "information",
        timeout: float | None = None,
        markup: bool = False,
    ) -> None:
        """What is said may come from a model, a file or a server: it is never markup, and moves no cursor."""
        super().notify(visible(message), title=title, severity=severity, timeout=timeout, markup=False)

    # the terminal

    @on(Driver.SignalResume)
    def _paint_again(self) -> None:
        """After Ctrl+Z and `fg`: the terminal gives back an empty screen, of which Textual believes that it is full."""
        self.refresh(layout=True)

    def announce(self, what: str, text: str, session_id: str) -> None:
        self._announcer.tell(what, text, session_id)

    def show_state(self, session: SessionState | None) -> None:
        """Show in the window's title and task bar whether the session works."""
        self._announcer.show_state(session)

    def say(self, sequence: str) -> None:
        if sequence and self._driver is not None and not self.is_headless:
            self._driver.write(sequence)

    # the end

    def _fatal_error(self) -> None:
        """Without Textual's own account, which shows the values of variables: there may be a key among them."""
        self._close_messages_no_wait()

    async def action_quit(self) -> None:
        """Textual's own key for it, which works in dialogs, too."""
        self.leave()

    def leave(self) -> None:
        leave(self)


def run(launch: Launch) -> int:
    """Until the user leaves; the exit code. Raises `SpawnRefused`: its user has to mend something first."""
    for name in ("COLUMNS", "LINES"):  # a size that a shell exported once would hide every later one
        os.environ.pop(name, None)
    told = terminal.ask(os.environ)
    app = KedgeApp(launch, told)
    code: Any = app.run()
    if app.problem is not None:
        raise app.problem
    if app._exception is not None:  # pyright: ignore[reportPrivateUsage] - where Textual keeps what ended it
        raise app._exception  # pyright: ignore[reportPrivateUsage]
    return code if isinstance(code, int) else app.return_code or 0


# Leaving: whoever would leave a run is asked, and told that it goes on.


TEXT = "A run is going on. It goes on without you: come back with `kedge --continue`."
CHOICES = (("leave", "Leave"), ("cancel", "Cancel it and leave"), ("stay", "Stay"))


def leave(app: KedgeApp) -> None:
    session = app.chat.session
    if session is None or not session.is_busy:
        app.exit(0)
        return
    from kedge.tui.dialogs.choices import ConfirmDialog

    def chosen(choice: str | None) -> None:
        if choice == "leave":
            app.exit(0)
        elif choice == "cancel":
            app.run_worker(_cancel_and_leave(app, session.session_id), group="leave")
        else:
            app.chat.changed()  # a request that was answered meanwhile is not asked again

    app.push_screen(ConfirmDialog(TEXT, CHOICES), chosen)


async def _cancel_and_leave(app: KedgeApp, session_id: str) -> None:
    try:
        await app.api.cancel(session_id)
    except ClientError as error:
        app.notify(f"Not cancelled: {error}", severity="error")
        return
    app.exit(0)
