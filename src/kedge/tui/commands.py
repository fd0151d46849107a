"""Slash commands: one table for the editor, the palette and help."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from kedge.client.errors import ClientError
from kedge.client.texts import render_markdown
from kedge.protocol.messages import Message
from kedge.protocol.runs import MODES
from kedge.protocol.text_safety import visible_line
from kedge.tui import formats
from kedge.tui.editor.draft import Draft
from kedge.tui.mcp import describe_arguments
from kedge.tui.state.blocks import Block, CallBlock

if TYPE_CHECKING:
    from kedge.protocol.mcp_requests import McpPrompt
    from kedge.protocol.runs import Attachment, Mode, QueuedPrompt
    from kedge.protocol.skills import CommandSource, UserCommand
    from kedge.tui.dialogs.queue import QueueDialog
    from kedge.tui.port import Chat

FROM_REPOSITORY = "From this repository: "  # its author wrote the prompt
OWN = "Your own, instead of the built-in one: "
UNUSED = "From this repository, not used because the name is taken: "
# Other names of commands, also those that other agents use.
ALIASES = {
    "q": "quit",
    "models": "model",
    "checkpoint": "rewind",
    "continue": "resume",
    "usage": "cost",
    "permission": "permissions",
    "approvals": "permissions",
    "summarize": "compact",
    "commands": "help",
    "reset": "new",
}


class Command(NamedTuple):
    name: str
    help: str
    run: Callable[[str], None]
    arguments: str = ""  # shown in help
    key: str = ""  # the action in `keys` that does the same
    source: CommandSource | None = None  # of a custom one: the user or the repository


class Commands:
    def __init__(self, screen: Chat) -> None:
        self._screen = screen
        self._queue_dialog: QueueDialog | None = None
        commands = (
            Command("help", "Show keys and commands", self._help, key="help"),
            Command("new", "Start a new session", self._new, key="new_session"),
            Command("clear", "Start a new session (same as /new)", self._new),
            Command("sessions", "Open, rename or delete a session", self._sessions, key="sessions"),
            Command("resume", "Open a session (same as /sessions)", self._sessions),
            Command("rename", "Rename this session", self._rename, "TITLE"),
            Command("model", "Choose the model of this session", self._model, "[NAME]", key="models"),
            Command("effort", "Choose the reasoning effort of this session", self._effort, "[LEVEL]"),
            Command("mode", "Switch mode: plan, ask, auto-edit, auto, yolo", self._mode, "[MODE]", key="next_mode"),
            Command("login", "Add an API key", self._login, "[PROVIDER]"),
            Command("permissions", "What runs may do without asking, and revoke it", self._permissions),
            Command("status", "Version, server, model, endpoint, configuration", self._status),
            Command("init", "Write AGENTS.md for this project, or update it", self._init, "[WISHES]"),
            Command("review", "Review uncommitted changes, or those since BASE", self._review, "[BASE]"),
            Command("skills", "Skills and sub-agents, and their files that are not used", self._skills),
            Command("compact", "Summarize the conversation to free context", self._compact),
            Command("context", "What fills the context window", self._context),
            Command("cost", "Tokens and cost of this session", self._cost),
            Command("diff", "Files changed in this session", self._diff, key="changes"),
            Command("undo", "Undo the last prompt and its file changes", partial(self._rewind, "undo")),
            Command("redo", "Redo", partial(self._rewind, "redo")),
            Command("rewind", "Go back to an earlier prompt", partial(self._rewind, "rewind")),
            Command(
                "timeline",
                "What each prompt and command changed, and undos",
                partial(self._rewind, "timeline"),
            ),
            Command("fork", "Fork this session", partial(self._rewind, "fork")),
            Command("queue", "Edit, move, send or remove queued prompts", self._queue, key="queue"),
            Command("jobs", "Background jobs and their output", self._jobs),
            Command("mcp", "MCP servers: state, tools, connect again, log in", self._mcp),
            Command("lsp", "Language servers: state, errors, start again", self._lsp),
            Command("copy", "Copy the last answer", self._copy, key="copy_answer"),
            Command("export", "Export the conversation to a Markdown file", self._export, "[FILE]"),
            Command("theme", "Choose a color theme", self._theme, "[NAME]"),
            Command("quit", "Quit (runs keep going)", self._quit, key="leave"),
            Command("exit", "Quit (same as /quit)", self._quit),
        )
        self._built_in = {command.name: command for command in commands}
        self.all = dict(self._built_in)
        self.unused: list[Command] = []  # of the repository, whose names are taken
        self._custom: Sequence[UserCommand] = ()
        self._attachments: tuple[Attachment, ...] = ()  # of the command that is run
        self._prompts: Sequence[McpPrompt] = ()

    def set_custom(self, found: Sequence[UserCommand]) -> None:
        """Replace the custom commands. One of the user's wins over a built-in one; one of the repository never does."""
        self._custom = found
        self.all, self.unused = dict(self._built_in), []
        for each in sorted(found, key=lambda each: each.source != "user"):
            about, run = visible_line(each.description), partial(self._send_custom, each.name)
            is_taken = each.name in self.all or each.name in ALIASES
            if each.source == "workspace":
                about = f"{UNUSED if is_taken else FROM_REPOSITORY}{about}"
            elif is_taken:
                about = f"{OWN}{about}"
            command = Command(
                each.name, about, run, visible_line(each.argument_hint) or "[ARGUMENTS]", source=each.source
            )
            if is_taken and each.source == "workspace":
                self.unused.append(command)
            else:
                self.all[each.name] = command
        for prompt in self._prompts:
            name = f"mcp:{prompt.server}:{prompt.name}"
            about = visible_line(f"From the MCP server {prompt.server}: {prompt.description or prompt.title or ''}")
            run = partial(self._screen.mcp.run_prompt, prompt)
            self.all.setdefault(name, Command(name, about, run, describe_arguments(prompt)))
        self._screen.editor.set_commands(self.names())

    def set_prompts(self, prompts: Sequence[McpPrompt]) -> None:
        """Replace the prompts of MCP servers, which are commands, too."""
        self._prompts = prompts
        self.set_custom(self._custom)

    def _send_custom(self, name: str, arguments: str) -> None:
        """Send the prompt that names a skill or custom command; the server fills in its text."""
        self._send(f"/{name} {arguments}".strip())

    def _send(self, prompt: str, mode: Mode | None = None) -> None:
        self._screen.send(Draft(prompt, self._attachments), mode=mode)

    def names(self) -> list[tuple[str, str]]:
        """Return names and descriptions, for completion."""
        return [(command.name, command.help) for command in self.all.values()]

    def run(self, line: str, attachments: tuple[Attachment, ...] = ()) -> None:
        """Run `/name arguments`. The attachments go with the prompt that the command sends, if it sends one."""
        name, *arguments = line.removeprefix("/").split(maxsplit=1)
        if (command := self._find(name)) is not None:
            self._run(command, "".join(arguments), attachments)
        else:
            self._screen.run_worker(self._run_new(name, "".join(arguments), attachments), group="command")

    def _run(self, command: Command, arguments: str, attachments: tuple[Attachment, ...]) -> None:
        self._attachments = attachments
        try:
            command.run(arguments)
        finally:
            self._attachments = ()

    def _find(self, name: str) -> Command | None:
        return self.all.get(name) or self.all.get(ALIASES.get(name, ""))

    async def _run_new(self, name: str, arguments: str, attachments: tuple[Attachment, ...]) -> None:
        """Run a command whose file may be new: read the list again before it is called unknown."""
        try:
            self.set_custom(await self._screen.api.user_commands())
        except ClientError as error:
            self._screen.editor.put_back_prompt(f"/{name} {arguments}".strip(), attachments)
            self._screen.hint(str(error))
            return
        if (command := self._find(name)) is not None:
            self._run(command, arguments, attachments)
        else:
            self._screen.hint(f"Unknown command /{name}. {self._suggest(name)}See /help.")

    def run_built_in(self, name: str) -> None:
        """Run the command that a key stands for, also if the user has a command of that name."""
        self._built_in[name].run("")

    def _suggest(self, name: str) -> str:
        """Return `Did you mean …? ` with the names that are most like this one; empty if there are none."""
        from difflib import get_close_matches

        known = {alias: target for alias, target in ALIASES.items() if target in self.all}
        found = get_close_matches(name, [*self.all, *known], n=2, cutoff=0.6)
        names = dict.fromkeys(known.get(each, each) for each in found)
        return f"Did you mean {' or '.join(f'/{each}' for each in names)}? " if names else ""

    def open_palette(self) -> None:
        from kedge.tui.dialogs.dialog import Palette

        key = self._screen.key
        items = [(each.name, each.help, key(each.key) if each.key else "") for each in self.all.values()]

        def take_choice(name: str | None) -> None:
            if name is not None:
                self.run(f"/{name}")

        self._screen.interface.push_screen(Palette(items), take_choice)

    def open_call(self, block: Block) -> None:
        """Open the details of a call: its diff, or the session of its sub-agent."""
        if not isinstance(block, CallBlock):
            return
        if block.child_session_id is not None:
            self._screen.open_session(block.child_session_id)
            return
        metadata = (block.result.metadata if block.result else None) or {}
        if isinstance(metadata.get("diff"), str):
            from kedge.tui.dialogs.changes import DiffDialog

            self._screen.interface.push_screen(DiffDialog(str(metadata.get("path", "")), metadata["diff"]))

    # the commands

    def _help(self, _: str) -> None:
        from kedge.tui.dialogs.help import HelpDialog

        listed = [*self.all.values(), *self.unused]
        commands = [(f"/{each.name} {each.arguments}".strip(), each.help) for each in listed]
        self._screen.interface.push_screen(HelpDialog(self._screen.interface.settings.keys, commands))

    def _new(self, _: str) -> None:
        self._screen.action_new_session()

    def _sessions(self, _: str) -> None:
        from kedge.tui.dialogs.sessions import SessionChoice, SessionDialog

        def take_choice(choice: SessionChoice | None) -> None:
            if choice is None:
                return
            if choice.directory is None:
                self._screen.open_session(choice.session_id)
            else:
                self._screen.interface.open_elsewhere(choice.directory, choice.session_id)

        self._screen.interface.push_screen(
            SessionDialog(self._screen.api, self._screen.workspace, self._screen.session_id), take_choice
        )

    def _rename(self, title: str) -> None:
        if session_id := self._require_session():
            if not title:
                self._screen.hint("Usage: /rename TITLE")
                return
            self._do(self._screen.api.rename(session_id, title))

    def _model(self, name: str) -> None:
        self._screen.interface.pick_model(name)

    def _effort(self, level: str) -> None:
        self._screen.interface.pick_effort(level)

    def _mode(self, name: str) -> None:
        if name in MODES:
            self._screen.choose_mode(name)
        elif name:
            self._screen.hint(f"Unknown mode {name!r}. Use one of: {', '.join(MODES)}")
        else:
            self._screen.action_next_mode()

    def _login(self, provider: str) -> None:
        self._screen.interface.log_in(provider)

    def _init(self, wishes: str) -> None:
        from kedge.tui.task_prompts import make_init_prompt

        if self._screen.mode == "plan":
            self._screen.hint("Mode plan changes no files: switch the mode first, then /init writes AGENTS.md")
        else:
            self._send(make_init_prompt(wishes))

    def _review(self, base: str) -> None:
        from kedge.tui.task_prompts import make_review_prompt

        self._send(make_review_prompt(base), "plan")

    def _skills(self, _: str) -> None:
        async def show() -> None:
            from kedge.tui.dialogs.skills import SkillsDialog

            try:
                listed = await self._screen.api.skills()
            except ClientError as error:
                self._screen.hint(str(error))
                return
            self._screen.interface.push_screen(SkillsDialog(listed), take_choice)

        def take_choice(name: str | None) -> None:
            if name is not None:
                self._screen.editor.put_back(f"/{name} ")

        self._screen.run_worker(show(), group="command")

    def _compact(self, _: str) -> None:
        from kedge.client.environment import new_run_id

        if session_id := self._require_session():
            self._do(self._screen.api.summarize(session_id, run_id=new_run_id()))

    def _context(self, _: str) -> None:
        from kedge.tui.dialogs.status import TextDialog, draw_context

        async def show(session_id: str) -> None:
            context = await self._screen.api.session_context(session_id)
            self._screen.interface.push_screen(TextDialog("Context", lambda _: draw_context(context)))

        if session_id := self._require_session():
            self._do(show(session_id))

    def _status(self, _: str) -> None:
        from kedge.tui.dialogs.status import ShownSession, TextDialog, draw_status

        async def show() -> None:
            screen, api = self._screen, self._screen.api
            offered, config, version = await asyncio.gather(api.list_models(), api.config(), api.server_version())
            session, session_id = screen.session, screen.session_id
            shown = ShownSession(
                session_id=session_id,
                title=screen.workspace.title_of(session_id),
                model=screen.model,
                window=screen.window,
                context_tokens=session.context_tokens if session else 0,
                mode=screen.mode,
            )
            providers = (await api.credentials()).providers
            draw = partial(draw_status, screen.interface.launch, shown, offered, config, version, providers)
            screen.interface.push_screen(TextDialog("Status", draw))

        self._do(show())

    def _permissions(self, _: str) -> None:
        from kedge.tui.dialogs.permissions import PermissionsDialog

        screen = self._screen
        screen.interface.push_screen(PermissionsDialog(screen.api, screen.session_id, screen.mode))

    def _cost(self, _: str) -> None:
        session = self._screen.session
        if session is None:
            self._screen.hint("No tokens used yet")
            return
        lines = [
            formats.describe_usage(session.usage, "{:,}".format) + " tokens",
            formats.format_cost(session.usage) or "Cost unknown: there is no price for this model",
        ]
        self._screen.notify("\n".join(lines), title="This session")

    def _diff(self, _: str) -> None:
        from kedge.tui.dialogs.changes import ChangesDialog

        if session_id := self._require_session():
            self._screen.interface.push_screen(ChangesDialog(self._screen.api, session_id))

    def _rewind(self, what: str, _: str) -> None:
        from kedge.tui import undo

        screen = self._screen
        if session_id := self._require_session():
            works = {"fork": undo.fork, "rewind": undo.pick_prompt, "timeline": undo.show_timeline}
            work = works[what](screen, session_id) if what in works else undo.rewind(screen, session_id, what)
            screen.run_worker(work, group="undo", exclusive=True)

    def _queue(self, _: str) -> None:
        from kedge.tui.dialogs.queue import QueueDialog

        screen, session = self._screen, self._screen.session
        if session is None or not session.queue:
            screen.hint("The queue is empty")
            return

        def take_edited(queued: QueuedPrompt | None) -> None:
            self._queue_dialog = None
            if queued is not None:
                screen.editor.put_back_run(queued)

        self._queue_dialog = QueueDialog(screen.api, session.session_id, session.queue)
        screen.interface.push_screen(self._queue_dialog, take_edited)

    def update_queue(self) -> None:
        """Show the queue as it is now in its dialog, if that is open."""
        dialog, session = self._queue_dialog, self._screen.session
        if dialog is not None:
            dialog.show_queue(session.queue if session and session.session_id == dialog.session_id else [])

    def _jobs(self, _: str) -> None:
        from kedge.tui.dialogs.background import JobsDialog

        self._screen.interface.push_screen(JobsDialog(self._screen.api))

    def _mcp(self, _: str) -> None:
        self._screen.mcp.open_dialog()

    def _lsp(self, _: str) -> None:
        self._screen.lsp.open_dialog()

    def _copy(self, _: str) -> None:
        session = self._screen.session
        answers = [m.text for m in session.messages.values() if m.role == "assistant" and m.text] if session else []
        if not answers:
            self._screen.hint("Nothing to copy yet")
            return
        self._screen.interface.copy_to_clipboard(answers[-1])
        self._screen.hint("Copied the last answer")

    def _export(self, name: str) -> None:
        if session_id := self._require_session():
            self._do(self._export_session(session_id, name))

    async def _export_session(self, session_id: str, name: str) -> None:
        screen = self._screen
        title, directory = screen.workspace.title_of(session_id), screen.interface.launch.directory
        messages = await screen.api.messages(session_id)
        try:
            path = await asyncio.to_thread(write_markdown, messages, title, name, directory)
        except (OSError, RuntimeError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            screen.hint(f"Could not export: {reason}")
        else:
            screen.notify(f"Exported to {path}")

    def _theme(self, name: str) -> None:
        self._screen.interface.pick_theme(name)

    def _quit(self, _: str) -> None:
        self._screen.interface.quit()

    def _require_session(self) -> str | None:
        if self._screen.session_id is None:
            self._screen.hint("No session yet. Send a prompt first.")
        return self._screen.session_id

    def _do(self, request: Awaitable[object]) -> None:
        async def do() -> None:
            try:
                await request
            except ClientError as error:
                self._screen.hint(str(error))

        self._screen.run_worker(do(), group="command")


def write_markdown(messages: Iterable[Message], title: str, name: str, directory: str) -> Path:
    """Write a conversation to a new file. Raises OSError (the file exists) or RuntimeError (unknown home directory)."""
    slug = re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")[:60] or "session"
    path = Path(directory, Path(name or f"{slug}.md").expanduser())
    texts = [render_markdown(msgspec.to_builtins(message)) for message in messages]
    with path.open("x", encoding="utf-8", errors="replace") as file:
        file.write("\n".join([f"# {title or 'Session'}\n", *filter(None, texts)]))
    return path
