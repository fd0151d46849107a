"""`ChatScreen`: chat, editor and status, drawn from the workspace's state at most thirty times a second."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

from textual import events, on, work
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.screen import Screen
from textual.widget import Widget

from kedge.client.errors import ClientError
from kedge.protocol.runs import Mode, OnBusy, Run
from kedge.protocol.text_safety import as_sentence, visible_line
from kedge.tui.api import Api
from kedge.tui.chat.transcript import Transcript
from kedge.tui.commands import Commands
from kedge.tui.editor.draft import Draft
from kedge.tui.editor.editor import PromptEditor
from kedge.tui.editor.history import EditorStore, state_directory
from kedge.tui.editor.keys import KEYS as EDITOR_KEYS
from kedge.tui.lsp import LspMenu
from kedge.tui.mcp import McpMenu
from kedge.tui.mode_switch import ModeSwitch
from kedge.tui.panels import (
    Activity,
    ActivityInfo,
    Banner,
    Elsewhere,
    Queue,
    Sidebar,
    StatusLine,
    Welcome,
    describe_new_lines,
    read_branch,
)
from kedge.tui.requests import RequestDialogs
from kedge.tui.sending import PromptSender
from kedge.tui.settings import KEYS, bindings, format_keys
from kedge.tui.state.block_builder import build_blocks
from kedge.tui.state.blocks import CallBlock, ReasoningBlock
from kedge.tui.state.session import Request, SessionState
from kedge.tui.state.workspace import RequestResolved, WorkspaceState
from kedge.tui.sync import Sync, read_surroundings

if TYPE_CHECKING:
    from kedge.tui.port import Interface


FRAME_S = 1 / 30
TYPING_FRAME_S = 1 / 8  # of the chat while somebody types: each drawing of it delays a key
TYPING_S = 0.5  # after the last key
DOUBLE_ESCAPE_S = 1.5  # short enough to be intended, long enough for a slow terminal
WIDE_COLUMNS = 120  # least width for the sidebar
SHORT_LINES = 24  # in a lower terminal, a permission request needs every line
TALL_LINES = 42  # least height for an editor with empty lines around its text


class ChatScreen(Screen[None]):
    BINDINGS = bindings()
    AUTO_FOCUS = "PromptEditor"

    def __init__(self, workspace: WorkspaceState, sync: Sync, api: Api, *, mode: Mode | None = None) -> None:
        super().__init__()
        self.workspace = workspace
        self.sync = sync
        self.api = api
        self.mode: Mode = mode or "ask"
        self.is_mode_chosen = mode is not None  # else the configured mode is used
        self.session_id: str | None = None
        self.model = ""  # for the next prompt
        self.window: int | None = None  # the model's context window in tokens
        self._branch = ""  # of git, in the directory
        self.commands = Commands(self)
        self.mcp = McpMenu(self)
        self.lsp = LspMenu(self)
        self.requests = RequestDialogs(self)
        self.sender = PromptSender(self)
        self.modes = ModeSwitch(self)
        self._escaped_at = float("-inf")
        self._hint = ""
        self._quiet_timer: asyncio.TimerHandle | None = None
        self._is_frame_due = False
        self._drawn_at = float("-inf")

    @property
    def interface(self) -> Interface:
        return cast("Interface", self.app)

    @property
    def session(self) -> SessionState | None:
        return self.workspace.open_sessions.get(self.session_id or "")

    @property
    def editor(self) -> PromptEditor:
        return self.query_one(PromptEditor)

    @property
    def transcript(self) -> Transcript:
        return self.query_one(Transcript)

    def compose(self) -> ComposeResult:
        with Vertical(id="main"):
            yield Banner()
            yield Transcript()
            yield Welcome()
            yield Queue()
            yield Activity()
            yield self._new_editor()
            yield StatusLine()
        yield Sidebar()

    def _new_editor(self) -> PromptEditor:
        launch = self.interface.launch
        directory = Path(launch.directory).absolute()
        store = EditorStore(state_directory(launch.data_dir, os.environ), f"{launch.host or ''}:{directory}")
        names = self.commands.names()
        return PromptEditor(self.mcp.complete, names, store=store, directory=directory if launch.is_local else None)

    def on_mount(self) -> None:
        self.on_resize()
        self.show_state()
        self.refresh_branch()

    @work(group="branch", exclusive=True)
    async def refresh_branch(self) -> None:
        """Read the branch again: something may have checked out another one."""
        launch = self.interface.launch
        if launch.is_local:
            self._branch = await asyncio.to_thread(read_branch, launch.directory)
            self.draw_soon()

    def on_resize(self, event: events.Resize | None = None) -> None:
        size = event.size if event else self.size
        self.set_class(size.width >= WIDE_COLUMNS, "-wide")
        self.set_class(size.height >= TALL_LINES, "-tall")
        self.set_class(size.height < SHORT_LINES, "-short")
        if self.requests.docked is not None:
            self.call_after_refresh(self.requests.docked.fit)

    # drawing

    def draw_soon(self) -> None:
        """Draw soon: at once after a pause, else with the next frame."""
        if self._is_frame_due or not self.is_mounted:
            return
        self._is_frame_due = True
        now = time.monotonic()
        is_typing = now - self.requests.last_key_at < TYPING_S
        wait_s = self._drawn_at + (TYPING_FRAME_S if is_typing else FRAME_S) - now
        if wait_s <= 0:
            self.call_later(self.show_state)
        else:
            self._call_in(wait_s, self.show_state)

    def show_state(self) -> None:
        """Bring the dialog of a request, prompts in flight, the screen and the window's title up to date."""
        if not self.children:  # the interface ends
            return
        self._is_frame_due = False
        self._drawn_at = time.monotonic()
        self.draw()
        self.requests.sync(self._pending_requests)
        self.requests.sync_plan(self._find_plan())
        self.commands.update_queue()
        self.sender.settle()
        self.interface.show_state(self.session)

    @property
    def _pending_requests(self) -> list[Request]:
        return self.workspace.requests_of(self.session_id) if self.session_id else []

    def _find_plan(self) -> Run | None:
        """Return the run whose plan waits for a decision."""
        return self.session.find_plan(self.interface.settings.mode) if self.session else None

    async def go_on(self, plan: Run, mode: Mode, remark: str) -> bool:
        """Go on with a plan, or with planning if there is a remark; return whether the prompt was sent."""
        if not await self.modes.confirm(mode):
            return False
        self.modes.use(mode)
        return await self.sender.answer_plan(plan, mode, remark)

    @property
    def _asking_elsewhere(self) -> list[str]:
        """Ids of other sessions that wait for the user."""
        shown = self.workspace.top_of(self.session_id) if self.session_id else None
        return [each for each in self.workspace.list_asking() if each != shown]

    def draw(self) -> None:
        session = self.session
        self.query_one(Banner).draw(self.sync)
        blocks = build_blocks(session) if session else []
        self.transcript.show(blocks)
        self._show_welcome(is_empty=not blocks)
        is_crowded = self.has_class("-short") and self.requests.docked is not None
        self.query_one(Queue).draw(None if is_crowded else session, self.key("queue"))
        is_agent = self.workspace.parent_of(self.session_id) is not None
        new_lines = describe_new_lines(self.transcript.new_lines, self.key("chat_end"))
        send_keys = "" if self.editor.content.is_blank else self._describe_send_keys()
        info = ActivityInfo(len(self._pending_requests), self.key("answer"), self._hint, is_agent, new_lines, send_keys)
        self.query_one(Activity).draw(session, info)
        directory = visible_line(Path(self.interface.launch.directory).name) or "/"
        directory += f" ({visible_line(self._branch)})" if self._branch else ""
        stored = self.workspace.sessions.get(self.session_id or "")
        effort = f" ({stored.effort})" if stored and stored.effort and self.model else ""
        model = visible_line(self.model) + effort
        elsewhere = Elsewhere(
            [visible_line(job.command) for job in self.workspace.running_jobs],
            [visible_line(self.workspace.title_of(each)) for each in self._asking_elsewhere],
            self.key("answer"),
            self.mcp.summary,
            self.lsp.running,
        )
        key = self.key("help")
        self.query_one(StatusLine).draw(self.modes.shown, model, session, self.window, directory, key, elsewhere)
        if self.has_class("-wide"):
            self.query_one(Sidebar).draw(
                self.workspace.title_of(self.session_id), model, session, self.window, directory, elsewhere
            )

    def _show_welcome(self, *, is_empty: bool) -> None:
        welcome = self.query_one(Welcome)
        welcome.display, self.transcript.display = is_empty, not is_empty
        if is_empty:
            home, directory = str(Path.home()), self.interface.launch.directory
            shown = directory.replace(home, "~", 1) if directory.startswith(f"{home}/") else directory
            branch, model = visible_line(self._branch), visible_line(self.model)
            welcome.draw(visible_line(shown), branch, model, self.key("help"), self.key("palette"))

    @property
    def last_key_at(self) -> float:
        return self.requests.last_key_at

    def key(self, action: str) -> str:
        """Return the first key of an action, as configured."""
        default = next(key.keys for key in KEYS if key.action == action)
        return format_keys(self.interface.settings.keys.get(action, default).split(",")[:1])

    def editor_key(self, action: str) -> str:
        """Return the first key of an action of the editor, as configured."""
        default = next(key.keys for key in EDITOR_KEYS if key.action == action)
        return format_keys(self.interface.settings.keys.get(f"editor.{action}", default).split(",")[:1])

    def _describe_send_keys(self) -> str:
        keys = [self.editor_key(action) for action in ("submit", "steer", "interrupt")]
        return "{} queue · {} send now · {} interrupt".format(*keys)

    @on(PromptEditor.Changed)
    def _show_send_keys(self) -> None:
        if self.session is not None and self.session.is_busy:
            self.draw_soon()

    def take_resolution(self, change: RequestResolved) -> None:
        self.requests.take_resolution(change)

    def hint(self, text: str) -> None:
        """Show a line above the editor until the next key."""
        self._hint = visible_line(as_sentence(text))
        self.draw_soon()

    def show_request(self, dialog: Widget) -> None:
        """Show a permission request above the editor, so that the call that it is about stays visible."""
        self.query_one("#main").mount(dialog, before=self.editor)
        self.draw_soon()  # on a short screen others make room for it

    def call_after_quiet(self, callback: Callable[[], None], wait_s: float) -> None:
        """Call it later, and not for an earlier call of this."""
        if self._quiet_timer is not None:
            self._quiet_timer.cancel()
        self._quiet_timer = self._call_in(wait_s, callback)

    def _call_in(self, wait_s: float, callback: Callable[[], None]) -> asyncio.TimerHandle:
        """Call it after a time. (A timer of Textual skips its call if the machine is so busy that it comes late.)"""
        return asyncio.get_running_loop().call_later(max(wait_s, 0.0), self.call_later, callback)

    def on_screen_resume(self) -> None:
        self.requests.offer_focus()

    # sessions

    @work(exclusive=True, group="open")
    async def open_session(self, session_id: str) -> None:
        try:
            await self.sync.open_session(session_id)
        except ClientError as error:
            self.notify(str(error), severity="error")
            return
        if not self.query(PromptEditor):
            return  # the user quit meanwhile, and the widgets are gone
        self.session_id = session_id
        self.requests.forget()
        self.show_state()
        self.transcript.scroll_end(animate=False)
        self.interface.refresh_model()
        self.interface.read(read_surroundings, session_id)

    def action_new_session(self) -> None:
        self.session_id = None
        self.requests.forget()
        self.show_state()
        self.interface.refresh_model()
        self.editor.focus()

    # sending

    @on(PromptEditor.Submitted)
    def _submit(self, event: PromptEditor.Submitted) -> None:
        self.submit(event.draft, on_busy=event.on_busy)

    @on(PromptEditor.Promoted)
    def _promote(self, event: PromptEditor.Promoted) -> None:
        session = self.session
        if session is None or not session.queue:
            self.hint("There is no queued prompt to send")
            return
        self.run_worker(self.sender.promote(session.session_id, session.queue[0].run_id, event.on_busy), group="queue")

    def submit(self, draft: Draft, *, on_busy: OnBusy = "queue") -> None:
        """Send a prompt from the editor's outbox, or run the command that it is."""
        if draft.kind == "command":
            self.editor.confirm_sent(draft)
            self.commands.run(draft.text, draft.attachments)
            return
        self.send(draft, on_busy=on_busy)

    def send(self, draft: Draft, *, mode: Mode | None = None, on_busy: OnBusy = "queue") -> None:
        """Send a prompt, in the chosen mode or in another one."""
        self.run_worker(self.sender.send(draft, mode, on_busy), group="send")

    # keys

    def clear_hint(self, key: str) -> None:
        """Called for every key, also those of the editor: the hint has been read by then."""
        if key != "escape":
            self._escaped_at = float("-inf")
            if self._hint:
                self.hint("")

    def action_escape(self) -> None:
        """Go back from a sub-agent's session; else, if pressed twice, cancel, or show the prompts to go back to."""
        now = time.monotonic()
        if self.focused is not self.editor:
            self.editor.focus()
        if (parent_id := self.workspace.parent_of(self.session_id)) is not None:
            self.open_session(parent_id)
            return
        session = self.session
        if session is None or (not session.is_busy and self.editor.text):
            return
        if now - self._escaped_at > DOUBLE_ESCAPE_S:
            self._escaped_at = now
            queued = "; queued prompts return to the editor" if session.queue else ""
            self.hint(f"Press Esc again to {f'cancel{queued}' if session.is_busy else 'go back to an earlier prompt'}")
            return
        self._escaped_at = float("-inf")
        if session.is_busy:
            self._cancel(session.session_id, session.queue)
        else:
            self.hint("")
            self.commands.run_built_in("rewind")

    @work(group="cancel")
    async def _cancel(self, session_id: str, queue: Sequence[Run]) -> None:
        """Cancel all runs of the session, and put the prompts that had not started back into the editor."""
        try:
            # Before the end: the attachments of a prompt are stored until then.
            waiting = [await self.api.read_queued(run) for run in queue if run.kind in ("prompt", "shell")]
            canceled = await self.api.cancel(session_id)
        except ClientError as error:
            self.notify(f"Could not cancel: {error}", severity="error")
            return
        self.hint("")
        for queued in reversed(waiting):
            if queued.run.run_id in canceled:
                self.editor.put_back_run(queued)

    def action_next_mode(self) -> None:
        self.modes.choose_next()

    def choose_mode(self, mode: Mode) -> None:
        """Use a mode for the next prompts and for the turn that runs."""
        self.modes.choose(mode)

    def action_answer(self) -> None:
        """Answer the request of this session, else go to another one that waits for the user."""
        session = self.session
        if self._pending_requests or self.requests.docked is not None:
            self.requests.reopen()
        elif session is not None and session.rejected_provider is not None:
            self.interface.log_in(session.rejected_provider)
        elif asking := self._asking_elsewhere:
            self.open_session(asking[0])
        else:
            self.requests.reopen()

    def action_clear(self) -> None:
        """Copy the selection, put a permission request off, or clear the prompt; quit if there is nothing of these."""
        if selected := self.get_selected_text():
            self.interface.copy_to_clipboard(selected)
            self.clear_selection()
            self.hint("Copied")
        elif self.requests.postpone():
            self.hint(f"Decide later: {self.key('answer')} shows the request again")
        elif self.editor.clear_prompt():
            self.hint("Cleared. Up brings the text back; Ctrl+C again quits.")
        else:
            self.interface.quit()

    @on(PromptEditor.Closed)
    def action_leave(self) -> None:
        self.interface.quit()

    def action_suspend(self) -> None:
        self.interface.action_suspend_process()

    def action_sidebar(self) -> None:
        self.toggle_class("-no-sidebar")

    def action_focus_chat(self) -> None:
        (self.transcript if self.focused is self.editor else self.editor).focus()

    def action_page_up(self) -> None:
        self._scroll("page_up")

    def action_page_down(self) -> None:
        self._scroll("page_down")

    def action_chat_home(self) -> None:
        self._scroll("home")

    def action_chat_end(self) -> None:
        self._scroll("end")

    def _scroll(self, how: str) -> None:
        """Scroll the text of a permission request that has the keys, else the chat."""
        dialog = self.requests.permission
        if dialog is not None and dialog.is_in_use:
            dialog.scroll_text(how)
        else:
            getattr(self.transcript, f"scroll_{how}")(animate=False)

    @on(Activity.EndWanted)
    def _show_end(self) -> None:
        self.transcript.scroll_end(animate=False)

    @on(Transcript.NewLines)
    def _show_new_lines(self) -> None:
        self.draw_soon()

    def action_fold_all(self) -> None:
        for kind in (ReasoningBlock, CallBlock):
            self.transcript.toggle_all(kind)

    def action_suggest(self, prompt: str) -> None:
        """Put an example of the empty screen into the editor."""
        self.editor.insert_text(prompt)
        self.editor.focus()

    def action_palette(self) -> None:
        self.commands.open_palette()

    def action_run_command(self, name: str) -> None:
        self.commands.run_built_in(name)

    @on(PromptEditor.Notice)
    def _show_notice(self, event: PromptEditor.Notice) -> None:
        self.hint(event.text)

    @on(Transcript.Opened)
    def _open_call(self, event: Transcript.Opened) -> None:
        self.commands.open_call(event.block)

    @on(Transcript.Copied)
    def _copy(self, event: Transcript.Copied) -> None:
        self.interface.copy_to_clipboard(event.text)
        self.hint("Copied")
