"""What can be typed after a slash, and what the palette offers: one table."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from kedge.client.errors import ClientError
from kedge.client.markdown import as_markdown
from kedge.protocol.messages import Message
from kedge.protocol.runs import MODES
from kedge.protocol.text_safety import visible_line
from kedge.tui import formats
from kedge.tui.editor.draft import Draft
from kedge.tui.state.blocks import Block, CallBlock

if TYPE_CHECKING:
    from kedge.protocol.api import UserCommand
    from kedge.tui.port import Chat

OF_REPOSITORY = "of this repository: "  # whose author chose the text that is sent


class Command(NamedTuple):
    name: str
    help: str
    run: Callable[[str], None]
    arguments: str = ""  # what comes after it, for help
    key: str = ""  # the action in `keys` that does the same
    is_own: bool = False  # the user's own


class Commands:
    def __init__(self, screen: Chat) -> None:
        self._screen = screen
        self.all: dict[str, Command] = {
            command.name: command
            for command in (
                Command("help", "keys and commands", self._help, key="help"),
                Command("new", "start a new session", self._new, key="new_session"),
                Command("clear", "the same as /new", self._new),
                Command("sessions", "open, rename or delete a session", self._sessions, key="sessions"),
                Command("rename", "give this session a title", self._rename, "TITLE"),
                Command("model", "choose a model for this session", self._model, "[NAME]", key="models"),
                Command("mode", "plan, ask, auto-edit or yolo", self._mode, "[MODE]", key="next_mode"),
                Command("login", "enter a provider's key", self._login, "[PROVIDER]"),
                Command("compact", "summarize the session to make room", self._compact),
                Command("context", "how full the context is", self._context),
                Command("cost", "what this session took", self._cost),
                Command("diff", "what this session changed", self._diff, key="changes"),
                Command("undo", "take back the last prompt, and what it changed", self._undo),
                Command("redo", "take the undo back", self._redo),
                Command("fork", "go on in a copy of this session", self._fork),
                Command("queue", "edit or drop queued prompts", self._queue, key="queue"),
                Command("jobs", "commands in the background", self._jobs),
                Command("copy", "copy the last answer", self._copy, key="copy_answer"),
                Command("export", "write the conversation to a file", self._export, "[FILE]"),
                Command("theme", "choose how it looks", self._theme, "[NAME]"),
                Command("quit", "leave; runs go on", self._quit, key="leave"),
            )
        }

    def add(self, found: Sequence[UserCommand]) -> None:
        """The user's own, in place of those that were there; a name of ours stays ours."""
        self.all = {name: each for name, each in self.all.items() if not each.is_own}
        for each in found:
            what, run = visible_line(each.description), partial(self._prompt, each.text)
            what = f"{OF_REPOSITORY}{what}" if each.source == "workspace" else what
            command = Command(each.name, what, run, "[ARGUMENTS]", is_own=True)
            self.all.setdefault(each.name, command)
        self._screen.editor.set_commands(self.names())

    def _prompt(self, text: str, arguments: str) -> None:
        """A prompt with a name."""
        filled = text.replace("$ARGUMENTS", arguments) if "$ARGUMENTS" in text else f"{text}\n\n{arguments}".strip()
        self._screen.send(Draft(filled))

    def names(self) -> list[tuple[str, str]]:
        """For completion: what is typed, and what it does."""
        return [(command.name, command.help) for command in self.all.values()]

    def run(self, line: str) -> None:
        """`/name arguments`"""
        name, _, arguments = line.removeprefix("/").partition(" ")
        command = self.all.get(name)
        if command is None:
            self._screen.hint(f"There is no /{name}; /help lists what there is")
            return
        command.run(arguments.strip())

    def open_palette(self) -> None:
        from kedge.tui.dialogs.choices import Palette

        key = self._screen.key
        items = [(each.name, each.help, key(each.key) if each.key else "") for each in self.all.values()]

        def chosen(name: str | None) -> None:
            if name is not None:
                self.run(f"/{name}")

        self._screen.kedge.push_screen(Palette(items), chosen)

    def open_call(self, block: Block) -> None:
        """All of a call: its diff, or the session of its sub-agent."""
        if not isinstance(block, CallBlock):
            return
        if block.child_session_id is not None:
            self._screen.open_session(block.child_session_id)
            return
        metadata = (block.result.metadata if block.result else None) or {}
        if isinstance(metadata.get("diff"), str):
            from kedge.tui.dialogs.changes import DiffDialog

            self._screen.kedge.push_screen(DiffDialog(str(metadata.get("path", "")), metadata["diff"]))

    # the commands

    def _help(self, _: str) -> None:
        from kedge.tui.dialogs.help import HelpDialog

        commands = [(f"/{each.name} {each.arguments}".strip(), each.help) for each in self.all.values()]
        self._screen.kedge.push_screen(HelpDialog(self._screen.kedge.settings.keys, commands))

    def _new(self, _: str) -> None:
        self._screen.action_new_session()

    def _sessions(self, _: str) -> None:
        from kedge.tui.dialogs.sessions import SessionDialog

        def chosen(session_id: str | None) -> None:
            if session_id is not None:
                self._screen.open_session(session_id)

        self._screen.kedge.push_screen(
            SessionDialog(self._screen.api, self._screen.workspace, self._screen.session_id), chosen
        )

    def _rename(self, title: str) -> None:
        if session_id := self._of_session():
            if not title:
                self._screen.hint("Say how: /rename TITLE")
                return
            self._do(self._screen.api.rename(session_id, title))

    def _model(self, name: str) -> None:
        self._screen.kedge.pick_model(name)

    def _mode(self, name: str) -> None:
        if name in MODES:
            self._screen.choose_mode(name)
        elif name:
            self._screen.hint(f"There is no mode {name!r}; there are {', '.join(MODES)}")
        else:
            self._screen.action_next_mode()

    def _login(self, provider: str) -> None:
        self._screen.kedge.log_in(provider)

    def _compact(self, _: str) -> None:
        from kedge.client.submission import new_run_id

        if session_id := self._of_session():
            self._do(self._screen.api.summarize(session_id, run_id=new_run_id()))

    def _context(self, _: str) -> None:
        session, window = self._screen.session, self._screen.window
        used = session.context_tokens if session else 0
        of = f" of {formats.tokens(window)} ({used * 100 // window}%)" if window else ""
        self._screen.notify(f"The last step read and wrote {formats.tokens(used)} tokens{of}.", title="Context")

    def _cost(self, _: str) -> None:
        session = self._screen.session
        if session is None:
            self._screen.hint("Nothing was used yet")
            return
        usage = session.usage
        lines = [
            f"{usage.input_tokens:,} tokens read, {usage.output_tokens:,} written",
            f"{usage.cache_read_tokens:,} from the cache, {usage.cache_write_tokens:,} into it",
            formats.cost(usage) or "$0.00",
        ]
        self._screen.notify("\n".join(lines), title="This session")

    def _diff(self, _: str) -> None:
        from kedge.tui.dialogs.changes import ChangesDialog

        if session_id := self._of_session():
            self._screen.kedge.push_screen(ChangesDialog(self._screen.api, session_id))

    def _undo(self, _: str) -> None:
        from kedge.tui.undo import undo

        if session_id := self._of_session():
            undo(self._screen, session_id)

    def _redo(self, _: str) -> None:
        from kedge.tui.undo import redo

        if session_id := self._of_session():
            redo(self._screen, session_id)

    def _fork(self, _: str) -> None:
        from kedge.tui.undo import fork

        if session_id := self._of_session():
            fork(self._screen, session_id)

    def _queue(self, _: str) -> None:
        from kedge.tui.dialogs.background import QueueDialog

        screen, session = self._screen, self._screen.session
        if session is None or not session.queue:
            screen.hint("No prompt is waiting")
            return
        waiting = {run.run_id: run for run in session.queue}

        async def take(what: str, run_id: str) -> None:
            try:
                await screen.api.drop(session.session_id, run_id)
            except ClientError as error:
                screen.hint(f"It is not in the queue any more: {error}")
                return
            if what == "edit":
                screen.editor.put_back(waiting[run_id].prompt)

        def chosen(choice: tuple[str, str] | None) -> None:
            if choice is not None:
                screen.run_worker(take(*choice), group="queue")

        screen.kedge.push_screen(QueueDialog(session.queue), chosen)

    def _jobs(self, _: str) -> None:
        from kedge.tui.dialogs.background import JobsDialog

        self._screen.kedge.push_screen(JobsDialog(self._screen.api))

    def _copy(self, _: str) -> None:
        session = self._screen.session
        answers = [m.text for m in session.messages.values() if m.role == "assistant" and m.text] if session else []
        if not answers:
            self._screen.hint("There is no answer to copy yet")
            return
        self._screen.kedge.copy_to_clipboard(answers[-1])
        self._screen.hint("Copied the last answer")

    def _export(self, name: str) -> None:
        if session_id := self._of_session():
            self._do(self._exported(session_id, name))

    async def _exported(self, session_id: str, name: str) -> None:
        from kedge.tui.commands import export

        screen = self._screen
        title, directory = screen.workspace.title_of(session_id), screen.kedge.launch.directory
        messages = await screen.api.messages(session_id)
        try:
            path = await asyncio.to_thread(export, messages, title, name, directory)
        except (OSError, RuntimeError) as error:
            screen.hint(f"Not written: {error}")
        else:
            screen.notify(f"Written to {path}")

    def _theme(self, name: str) -> None:
        self._screen.kedge.pick_theme(name)

    def _quit(self, _: str) -> None:
        self._screen.kedge.leave()

    def _of_session(self) -> str | None:
        if self._screen.session_id is None:
            self._screen.hint("There is no session yet: send a prompt first")
        return self._screen.session_id

    def _do(self, asked: Awaitable[object]) -> None:
        async def do() -> None:
            try:
                await asked
            except ClientError as error:
                self._screen.hint(str(error))

        self._screen.run_worker(do(), group="command")


# A conversation as a Markdown file.


def export(messages: Iterable[Message], title: str, name: str, directory: str) -> Path:
    """Write it; an existing file is never overwritten. Raises OSError, and RuntimeError for a home that nobody has."""
    slug = re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")[:60] or "session"
    path = Path(directory, Path(name or f"{slug}.md").expanduser())
    texts = [as_markdown(msgspec.to_builtins(message)) for message in messages]
    with path.open("x", encoding="utf-8", errors="replace") as file:
        file.write("\n".join([f"# {title or 'Session'}\n", *filter(None, texts)]))
    return path
