"""The terminal interface as an application: its life, what it tells the terminal, and the model it works with."""

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
from kedge.protocol.events import AgentEvent, ConfigChanged
from kedge.protocol.requests import PermissionRequest, QuestionRequest
from kedge.tui import terminal
from kedge.tui.chat.clean import clean
from kedge.tui.desk import Desk
from kedge.tui.dialogs.dialog import Guarded
from kedge.tui.launch import Launch
from kedge.tui.link import Link
from kedge.tui.screen import ChatScreen
from kedge.tui.settings import Settings
from kedge.tui.story.book import Book, Ended, Gone, Happening, Rechosen, Resolved, Rewound

if TYPE_CHECKING:
    from kedge.client import AsyncClient
    from kedge.tui.story.page import Page

T = TypeVar("T")
JOIN_S = 1.0  # of one try to join: the link tries again, and nobody who leaves waits longer for it


class KedgeApp(App[int]):
    CSS_PATH = "kedge.tcss"
    TITLE = "kedge"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = []

    def __init__(self, launch: Launch, told: terminal.Told = terminal.SILENT) -> None:
        super().__init__()
        self.launch = launch
        self.settings = Settings()
        self.book = Book(self._happened)
        self.link = Link(self.book, self._connect, self._changed)
        self.desk = Desk(self.link.ready)
        self.chat = ChatScreen(self.book, self.link, self.desk, mode=launch.mode)
        self.problem: SpawnRefused | None = None  # why there is no server to look at
        self._told = told
        self._is_focused = True
        self._linking: asyncio.Task[None] | None = None
        self._said = ("", "")  # title and progress, as they were told last

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
            await self.link.run()
        except SpawnRefused as error:
            self.problem = error
            self.exit()

    async def on_unmount(self) -> None:
        if self._linking is not None:  # its connections are closed before the loop is
            self._linking.cancel()
            await asyncio.wait({self._linking})
        self.say(terminal.title("") + (terminal.progress("none") if terminal.shows_progress(os.environ) else ""))

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
        return AsyncClient(client.wire, client.workspace)

    @work(group="begin")
    async def _begin(self) -> None:
        if self._told.typed:
            self.chat.editor.insert(self._told.typed.decode(errors="ignore"))
        try:
            await self._read_settings()
            session_id = self.launch.session_id
            if session_id is None and self.launch.is_continued:
                found = [each for each in await self.desk.sessions() if each.parent_session_id is None]
                session_id = found[0].id if found else None
            if session_id is not None:
                self.chat.open_session(session_id)
            if not await self.choose_model():
                from kedge.tui.dialogs.first import first_start

                await first_start(self)
        except ClientError as error:
            self.notify(str(error), severity="error")

    async def _read_settings(self) -> None:
        self.settings = Settings.read(await self.desk.config())
        self.chat.commands.add(await self.desk.user_commands())
        self.set_keymap(dict(self.settings.keys))
        if not self.chat.is_mode_chosen:
            self.chat.mode = self.settings.mode
        self.theme = self.settings.theme if self.settings.theme in self.available_themes else self._own_theme
        if self.settings.unknown:
            self.chat.hint(
                f"[tui.keys] has no action {', '.join(self.settings.unknown)}; {self.chat.key('help')} lists them"
            )
        self._changed()

    # models

    async def choose_model(self) -> bool:
        """Find out which model the next prompt goes to; whether there is one."""
        from kedge.tui.models import current

        offered = await self.desk.offered()
        session = self.book.sessions.get(self.chat.session_id or "")
        found = current(offered, self.launch.model, session.model if session else None)
        self.chat.model = found.name if found.is_ready else ""
        self.chat.window = found.context_window
        self._changed()
        return found.is_ready

    @work(group="dialog")
    async def pick_model(self, name: str = "") -> None:
        from kedge.tui.models import pick

        await self._try(pick(self, name))

    @work(group="dialog")
    async def log_in(self, provider: str = "") -> None:
        from kedge.tui.dialogs.login import KeyDialog
        from kedge.tui.models import log_in

        if not any(isinstance(screen, KeyDialog) for screen in self.screen_stack):
            await self._try(log_in(self, provider))

    async def _try(self, asked: Awaitable[object]) -> None:
        """And see which model there is afterwards."""
        try:
            await asked
            await self.choose_model()
        except ClientError as error:
            self.chat.hint(str(error))

    def pick_theme(self, name: str = "") -> None:
        if name and name not in self.available_themes:
            self.chat.hint(f"There is no theme {name!r}")
        elif name:
            self._set_theme(name)
        else:
            self._choose_theme()

    @work(group="dialog")
    async def _choose_theme(self) -> None:
        from kedge.tui.dialogs.palette import Palette

        items = [(theme, "", "") for theme in sorted(self.available_themes)]
        if (chosen := await self.ask(Palette(items, "Theme"))) is not None:
            self._set_theme(chosen)

    async def ask(self, dialog: ModalScreen[T]) -> T | None:
        """What a dialog was answered; None: it was closed."""
        return await self.push_screen_wait(dialog)

    @work(group="theme")
    async def _set_theme(self, name: str) -> None:
        self.theme = name
        try:
            await self.desk.set_config("tui.theme", name)
        except ClientError as error:
            self.chat.hint(f"It looks so until you leave; not stored: {error}")

    # what happens

    def _changed(self) -> None:
        self.chat.changed()

    def _happened(self, what: Happening) -> None:
        """Told by the story, once for each."""
        match what:
            case Resolved():
                self.chat.asking.resolved(what)
            case Ended(run, end):
                if self.chat.session_id == end.session_id:
                    self.read(partial(self.link.read_totals, end.session_id))
                is_own = run is None or run.parent_run_id is None
                if is_own and not end.cancelled:
                    self._notify("failed" if end.error else "finished", end.error or end.text, end.session_id)
            case Gone(session_id):
                if session_id == self.chat.session_id:
                    self.chat.action_new_session()
                    self.chat.hint("The session was deleted")
            case Rewound(session_id):
                self.read(partial(self.link.read_page, session_id))
                self.read(partial(self.link.read_surroundings, session_id))
            case ConfigChanged():
                self._reread()
            case Rechosen(session_id):
                if session_id == self.chat.session_id:
                    self._reread()
            case AgentEvent():
                if what.type == "re_authenticate" and what.session_id == self.chat.session_id:
                    self.log_in(what.provider_id or "")
            case PermissionRequest():
                self._notify("asks", what.description, what.session_id)
            case QuestionRequest():
                asked = next((str(each.get("question", "")) for each in what.questions), "")
                self._notify("asks", asked, what.session_id)

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
    async def _reread(self) -> None:
        try:
            await self._read_settings()
            await self.choose_model()
        except ClientError:
            pass  # read again when there is a server

    def _notify(self, what: str, text: str, session_id: str) -> None:
        """For somebody who looks elsewhere: at another window, or another session."""
        session = self.book.sessions.get(session_id)
        title = (session.title if session else "") or "kedge"
        if not self._is_focused:
            self.say(terminal.notification(f"{title}: {what}", text, self.settings.notifications, os.environ))
        elif session_id != self.chat.session_id and (
            session is None or session.parent_session_id != self.chat.session_id
        ):
            self.notify(f"{title}: {what}")

    async def on_event(self, event: events.Event) -> None:
        if isinstance(event, events.Key):
            self.chat.pressed(event.key)
            if isinstance(self.screen, Guarded) and not self.screen.takes(event.key):
                return
        await super().on_event(event)

    def on_app_focus(self, _: events.AppFocus) -> None:
        self._is_focused = True

    def on_app_blur(self, _: events.AppBlur) -> None:
        self._is_focused = False

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
        super().notify(clean(message), title=title, severity=severity, timeout=timeout, markup=False)

    # the terminal

    def show_state(self, page: Page | None) -> None:
        """In the title and the task bar."""
        session = self.book.sessions.get(page.session_id) if page else None
        is_busy = page is not None and page.is_busy
        title = terminal.title(f"{'● ' if is_busy else ''}{(session.title if session else '') or 'kedge'}")
        progress = terminal.progress("busy" if is_busy else "none") if terminal.shows_progress(os.environ) else ""
        if (title, progress) != self._said:
            self._said = (title, progress)
            self.say(title + progress)

    @on(Driver.SignalResume)
    def _paint_again(self) -> None:
        """After Ctrl+Z and `fg`: the terminal gives back an empty screen, of which Textual believes that it is full."""
        self.refresh(layout=True)

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
        """Ask when a run would be left, and say that it goes on."""
        page = self.chat.page
        if page is None or not page.is_busy:
            self.exit(0)
            return
        from kedge.tui.dialogs.confirm import ConfirmDialog

        text = "A run is going on. It goes on without you: come back with `kedge --continue`."
        choices = [("leave", "Leave"), ("cancel", "Cancel it and leave"), ("stay", "Stay")]
        self.push_screen(ConfirmDialog(text, choices), self._left)

    def _left(self, choice: str | None) -> None:
        if choice == "leave":
            self.exit(0)
        elif choice == "cancel":
            self._cancel_and_leave()
        else:
            self._changed()  # a request that was answered meanwhile is not asked again

    @work(group="leave")
    async def _cancel_and_leave(self) -> None:
        try:
            if self.chat.session_id is not None:
                await self.desk.cancel(self.chat.session_id)
        except ClientError as error:
            self.notify(f"Not cancelled: {error}", severity="error")
            return
        self.exit(0)


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
