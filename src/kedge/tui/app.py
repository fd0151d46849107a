"""`KedgeApp`: start and end of the terminal interface, its connection, settings and model."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Awaitable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from textual import events, on, work
from textual.app import App
from textual.binding import BindingType
from textual.color import Color
from textual.css.query import NoMatches
from textual.driver import Driver
from textual.filter import LineFilter
from textual.notifications import SeverityLevel
from textual.screen import ModalScreen
from textual.worker import WorkerError

from kedge.client.errors import ClientError, SpawnRefused
from kedge.client.reconnect import ReconnectPolicy
from kedge.protocol.text_safety import pasted_text, visible
from kedge.tui import terminal
from kedge.tui.api import Api
from kedge.tui.colorless import Colorless, is_colorless
from kedge.tui.dialogs.dialog import GuardedDialog, TooSmall, is_too_small
from kedge.tui.editor.draft import Content
from kedge.tui.key_queue import Input, KeyQueue
from kedge.tui.output import FrameGate, TerminalDriver
from kedge.tui.reactions import Announcer, react
from kedge.tui.screen import ChatScreen
from kedge.tui.settings import Launch, Settings
from kedge.tui.state.session import SessionState
from kedge.tui.state.workspace import WorkspaceState
from kedge.tui.sync import FOREVER_S, Sync, read_usage
from kedge.tui.themes import AUTO, DARK_THEME, LIGHT_THEME, THEMES, unify_variables

if TYPE_CHECKING:
    from kedge.client import AsyncClient
    from kedge.tui.sync import Read

T = TypeVar("T")
JOBS_WAIT_S = 20.0  # less than the silence after which a connection counts as lost
JOIN_S = 1.0  # of one attempt to join: `Sync` repeats it, and quitting waits no longer than this

QUIT_TEXT = "Still working. It will keep running after you quit; `kedge --continue` reopens it."
QUIT_CHOICES = (("quit", "Quit"), ("cancel", "Cancel the run and quit"), ("stay", "Stay"))


class KedgeApp(App[int]):
    CSS_PATH = "kedge.tcss"
    TITLE = "kedge"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = []

    def __init__(self, launch: Launch, terminal_info: terminal.TerminalInfo = terminal.UNKNOWN) -> None:
        super().__init__(driver_class=TerminalDriver)
        self.no_color = is_colorless(os.environ)
        for theme in THEMES:
            self.register_theme(theme)
        self.launch = launch
        self.settings = Settings()
        self.workspace = WorkspaceState(partial(react, self))
        self.sync = Sync(self.workspace, self._connect, lambda: self.chat.draw_soon())
        self.api = Api(self.sync.ready)
        self.chat = ChatScreen(self.workspace, self.sync, self.api, mode=launch.mode)
        self.problem: SpawnRefused | None = None  # why no server could be started
        self.next_launch: Launch | None = None  # of the interface that follows this one, in another directory
        self._terminal_info = terminal_info
        self._announcer = Announcer(self)
        self._keys = KeyQueue(self, self._handle_input, self.chat.requests.offer_focus, self._is_text)
        self._syncing: asyncio.Task[None] | None = None
        self._frames: FrameGate | None = None

    def get_default_screen(self) -> ChatScreen:
        return self.chat

    def on_mount(self) -> None:
        self.theme = self._default_theme
        if isinstance(self._driver, TerminalDriver):
            self._frames = FrameGate(self, self._driver)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self.exit, 128 + number)
        self.call_after_refresh(self._start_sync)

    def _start_sync(self) -> None:
        """Called after the first frame: importing the HTTP client takes as long as half of the rest."""
        self.run_worker(self._run_sync(), group="sync", exit_on_error=True)
        self._start()
        self._watch_jobs()

    async def _run_sync(self) -> None:
        self._syncing = asyncio.current_task()
        try:
            await self.sync.run()
        except SpawnRefused as error:
            self.problem = error
            self.exit()

    async def on_unmount(self) -> None:
        await self._keys.close()
        if self._syncing is not None:  # its connections must be closed before the event loop
            self._syncing.cancel()
            await asyncio.wait({self._syncing})
        self._announcer.clear()
        if self._frames is not None:
            self._frames.close()

    @property
    def _default_theme(self) -> str:
        return LIGHT_THEME if self._terminal_info.is_light and not self.no_color else DARK_THEME

    def show_theme(self, name: str) -> None:
        """Show a theme; `auto` and unknown names are the one that suits the terminal."""
        self.theme = name if name in self.available_themes else self._default_theme

    def get_line_filters(self) -> Sequence[LineFilter]:
        if not self.no_color:
            return super().get_line_filters()
        return [Colorless(Color.parse(self.theme_variables["block-cursor-background"]))]

    def get_css_variables(self) -> dict[str, str]:
        variables = unify_variables(super().get_css_variables())
        self.theme_variables = variables
        return variables

    # start

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
        return AsyncClient(client.transport, client.workspace)  # with the usual patience from now on

    @work(group="start")
    async def _start(self) -> None:
        if self._terminal_info.typed:
            self.chat.editor.insert(pasted_text(self._terminal_info.typed.decode(errors="ignore")))
        first = self.chat.editor.begin_sending(Content(self.launch.prompt)) if self.launch.prompt else None
        try:
            await self._read_settings()
            session_id = self.launch.session_id
            if session_id is None and self.launch.is_continued:
                latest = await self.api.latest_session()
                session_id = latest.id if latest else None
            if session_id is not None:
                opening = self.chat.open_session(session_id)
                if first is not None:  # it belongs to that session
                    with contextlib.suppress(WorkerError):
                        await opening.wait()
            is_ready = await self.choose_model()
            if not is_ready:
                from kedge.tui.pickers import first_start

                is_ready = await first_start(self)
            if first is not None and is_ready and self.chat.session_id == session_id:
                self.chat.submit(first)
                first = None
        except NoMatches:
            if not self._exit:  # otherwise the user quit meanwhile, and the widgets are gone
                raise
        except ClientError as error:
            self.notify(str(error), severity="error")
        finally:
            if first is not None and not self._exit:
                self.chat.editor.put_back_unsent(first)

    async def _read_settings(self) -> None:
        self.settings = Settings.read(await self.api.config())
        self.chat.commands.set_custom(await self.api.user_commands())
        self.run_worker(self.chat.mcp.start(), group="mcp")
        self.run_worker(self.chat.lsp.read(), group="lsp")
        self.set_keymap(dict(self.settings.keys))
        if not self.chat.is_mode_chosen:
            self.chat.mode = self.settings.mode
        theme = self.settings.theme
        self.show_theme(theme)
        problems: list[str] = []
        if theme not in (AUTO, self.theme):
            problems.append(f"Unknown theme {theme!r} in tui.theme. Use /theme to choose one.")
        if self.settings.unknown:
            names = ", ".join(self.settings.unknown)
            problems.append(f"Unknown actions in [tui.keys]: {names}. {self.chat.key('help')} lists all.")
        if problems:
            self.chat.hint(" ".join(problems))
        self.chat.draw_soon()

    # models

    async def choose_model(self) -> bool:
        """Determine the model for the next prompt; return whether there is one."""
        from kedge.tui.pickers import find_current_model

        offered = await self.api.list_models()
        session = self.workspace.sessions.get(self.chat.session_id or "")
        current = find_current_model(offered, self.launch.model, session.model if session else None)
        self.chat.model = current.name if current.is_ready else ""
        self.chat.window = current.context_window
        self.chat.draw_soon()
        return current.is_ready

    @work(group="dialog")
    async def pick_model(self, name: str = "") -> None:
        from kedge.tui.pickers import pick_model

        await self._finish_picking(pick_model(self, name))

    @work(group="dialog")
    async def pick_effort(self, level: str = "") -> None:
        from kedge.tui.pickers import pick_effort

        await self._finish_picking(pick_effort(self, level))

    @work(group="dialog")
    async def log_in(self, provider: str = "") -> None:
        from kedge.tui.dialogs.models import KeyDialog
        from kedge.tui.pickers import log_in

        if not any(isinstance(screen, KeyDialog) for screen in self.screen_stack):
            await self._finish_picking(log_in(self, provider))

    async def _finish_picking(self, picking: Awaitable[object]) -> None:
        """Wait for the choice, then update the model."""
        try:
            await picking
            await self.choose_model()
        except ClientError as error:
            self.chat.hint(str(error))

    @work(group="dialog")
    async def pick_theme(self, name: str = "") -> None:
        from kedge.tui.pickers import pick_theme

        await pick_theme(self, name)

    async def ask(self, dialog: ModalScreen[T]) -> T | None:
        """Show a dialog; return its answer, or None if it was closed."""
        return await self.push_screen_wait(dialog)

    # updates

    @work(group="reading")
    async def read(self, read: Read, session_id: str) -> None:
        """Read something about a session in the background; see `Sync.read`."""
        try:
            await self.sync.read(read, session_id)
        except ClientError:
            pass  # `Sync` reads everything again when the server is back

    @work(group="usage", exclusive=True)
    async def read_usage(self, session_id: str) -> None:
        """Read a session's tokens and cost; a step that ends meanwhile starts it again."""
        try:
            await self.sync.read(read_usage, session_id)
        except ClientError:
            pass

    @work(group="jobs")
    async def _watch_jobs(self) -> None:
        """Keep the list of background jobs up to date: the server answers when it has changed."""
        policy = ReconnectPolicy(give_up_s=FOREVER_S)
        while True:
            running = [job.id for job in self.workspace.running_jobs]
            try:
                self.workspace.jobs = await self.api.wait_for_jobs(running, JOBS_WAIT_S)
            except ClientError:
                await asyncio.sleep(policy.next_delay_s() or 0)
                continue
            policy.record_contact()
            self.chat.draw_soon()

    @work(group="model", exclusive=True)
    async def refresh_model(self) -> None:
        """Update the model, because another session is shown."""
        try:
            await self.choose_model()
        except ClientError as error:
            self.chat.hint(str(error))

    @work(group="settings", exclusive=True)
    async def reload_settings(self) -> None:
        try:
            await self._read_settings()
            await self.choose_model()
        except ClientError:
            pass  # `Sync` triggers it again when the server is back

    async def on_event(self, event: events.Event) -> None:
        if isinstance(event, Input) and not event.is_forwarded and self._keys.must_wait(event):
            self._keys.add(event)
        else:
            await super().on_event(event)

    def _is_text(self, event: Input) -> bool:
        return isinstance(event, events.Key) and event.is_printable and self.focused is self.chat.editor

    async def _handle_input(self, event: Input) -> None:
        """Handle a key, a paste or the mouse; called when those before have had their effect."""
        if not isinstance(event, events.MouseEvent):
            self.chat.requests.note_key()
        if isinstance(event, events.Key):
            self.chat.clear_hint(event.key)
            if isinstance(self.screen, GuardedDialog) and not self.screen.accepts_key(event.key):
                if event.is_printable and event.character:  # typed ahead: it was meant for the editor
                    self.chat.editor.insert_text(event.character)
                return
        await super().on_event(event)

    def on_resize(self, event: events.Resize) -> None:
        if is_too_small(event.size) and not any(isinstance(each, TooSmall) for each in self.screen_stack):
            self.push_screen(TooSmall())

    def on_app_focus(self, _: events.AppFocus) -> None:
        self._announcer.has_focus = True
        self.chat.refresh_branch()

    def on_app_blur(self, _: events.AppBlur) -> None:
        self._announcer.has_focus = False

    def notify(
        self,
        message: str,
        *,
        title: str = "",
        severity: SeverityLevel = "information",
        timeout: float | None = None,
        markup: bool = False,
    ) -> None:
        """Show text that may come from a model or a file: never as markup, and without control characters."""
        super().notify(visible(message), title=title, severity=severity, timeout=timeout, markup=False)

    # the terminal

    @on(Driver.SignalResume)
    def _repaint(self) -> None:
        """After Ctrl+Z and `fg`: the terminal is empty, but Textual assumes that its last frame is still there."""
        self.refresh(layout=True)

    def post_display_hook(self) -> None:
        """Called by Textual behind each frame."""
        if self._frames is not None:
            self._frames.note_frame()

    def announce(self, what: str, text: str, session_id: str) -> None:
        self._announcer.announce(what, text, session_id)

    def show_state(self, session: SessionState | None) -> None:
        """Show in the window's title and task bar whether the session is busy."""
        self._announcer.show_state(session)

    def write_terminal(self, sequence: str) -> None:
        if sequence and self._driver is not None and not self.is_headless:
            self._driver.write(sequence)

    # end

    def _fatal_error(self) -> None:
        """Skip Textual's traceback: it shows local variables, which may contain API keys."""
        self._close_messages_no_wait()

    async def action_quit(self) -> None:
        """Textual's own binding, which also works in dialogs."""
        self.quit()

    def open_elsewhere(self, directory: str, session_id: str) -> None:
        """End this interface, and begin one in another directory. Runs go on; unsent text is kept here."""
        is_local = self.launch.host is None or self.launch.host.startswith("unix:")
        if is_local and not Path(directory).is_dir():
            self.chat.hint(f"{directory} is not a directory any more, so its sessions cannot be opened")
            return
        self.next_launch = self.launch._replace(
            directory=directory, session_id=session_id, is_continued=False, prompt=None
        )
        self.exit(0)

    def quit(self) -> None:
        """Exit; ask first if the session is busy, because its run goes on."""
        session = self.chat.session
        if session is None or not session.is_busy:
            self.exit(0)
            return
        from kedge.tui.dialogs.dialog import QuitDialog

        def take_choice(choice: str | None) -> None:
            if choice == "quit":
                self.exit(0)
            elif choice == "cancel":
                self.run_worker(self._cancel_and_quit(session.session_id), group="quit")
            else:
                self.chat.draw_soon()  # shows a request that arrived meanwhile

        self.push_screen(QuitDialog(QUIT_TEXT, QUIT_CHOICES, self.chat.editor.insert_text), take_choice)

    async def _cancel_and_quit(self, session_id: str) -> None:
        try:
            await self.api.cancel(session_id)
        except ClientError as error:
            self.notify(f"Could not cancel: {error}", severity="error")
            return
        self.exit(0)


def run(launch: Launch) -> int:
    """Run until the user quits; return the exit code. Raises `SpawnRefused` if no server can be started."""
    for name in ("COLUMNS", "LINES"):  # an exported size would hide later changes of the window
        os.environ.pop(name, None)
    info = terminal.query_terminal(os.environ)
    app = KedgeApp(launch, info)
    code: Any = app.run()
    while app.next_launch is not None:
        launch = app.next_launch
        app = KedgeApp(launch, info._replace(typed=b""))
        code = app.run()
    if code == 0 and app.chat.session_id is not None:
        sys.stdout.write(f"Resume this session with: {launch.resume_command(app.chat.session_id)}\n")
    if app.problem is not None:
        raise app.problem
    if app._exception is not None:  # pyright: ignore[reportPrivateUsage] - where Textual stores the error that ended it
        raise app._exception  # pyright: ignore[reportPrivateUsage]
    return code if isinstance(code, int) else app.return_code or 0
