"""Widgets around the chat and the editor: banner, activity, queue, status line, sidebar, welcome."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from textual.app import ComposeResult
from textual.containers import Horizontal, VerticalScroll
from textual.content import Content
from textual.message import Message
from textual.style import Style
from textual.widgets import Static

from kedge.protocol.lsp import LspEvent
from kedge.protocol.runs import Mode, Run
from kedge.tui import formats
from kedge.tui.state.session import SessionState
from kedge.tui.sync import Sync
from kedge.version import VERSION


class QuietText(Static):
    """Text that is redrawn only when it changes, and changes the layout only when its size may have changed."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__("", id=id, markup=False)
        self._shown = Content("")

    def show(self, content: Content) -> None:
        if content != self._shown or content.spans != self._shown.spans:  # `==` ignores styles
            before, self._shown = self._shown, content
            is_sized = content.cell_length != before.cell_length or "\n" in content.plain
            self.update(content, layout=is_sized)


_MODES: dict[Mode, str] = {
    "plan": "$text-accent",
    "ask": "$foreground-muted",
    "auto-edit": "$text-warning",
    "auto": "$text-warning",
    "yolo": "$text-error",
}
_NONE = Content("")
TICK_S = 0.1
_SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"


class Banner(QuietText):
    """Shown while there is no connection to the server."""

    def draw(self, sync: Sync) -> None:
        is_up = sync.state == "live"
        self.display = not is_up and not (sync.state == "connecting" and not sync.error)
        if is_up:
            return
        what = "Could not reach the server" if sync.state == "lost" else "The server refused the connection"
        # The reason of a lost connection may be the text of a library's exception, which helps nobody.
        why = f" ({formats.one_line(sync.error, 200)})" if sync.error and sync.state == "refused" else ""
        self.show(Content(f"{what}{why}. Retrying… Nothing is lost."))


class ActivityInfo(NamedTuple):
    """What `Activity` shows besides the session's state."""

    request_count: int = 0  # pending requests to the user
    answer_key: str = ""
    hint: str = ""
    is_agent: bool = False  # a sub-agent's session is shown
    new_lines: str = ""  # that arrived below the visible ones
    send_keys: str = ""  # what keys do with the text in the editor


class Activity(QuietText):
    """The line above the editor: a hint, or the session's activity. Its timer runs only while it is busy."""

    def __init__(self) -> None:
        super().__init__()
        self._shown_run: str | None = None  # whose time is counted
        self._since: float | None = None
        self._session: SessionState | None = None
        self._info = ActivityInfo()
        self._tick = 0

    def on_mount(self) -> None:
        self._timer = self.set_interval(TICK_S, self._draw, pause=True)

    def draw(self, session: SessionState | None, info: ActivityInfo) -> None:
        if session is not None and session.is_busy:
            run = session.active or session.queue[0]
            if self._since is None or self._shown_run != run.run_id:
                self._shown_run = run.run_id
                self._since = session.began_at.get(run.run_id) or time.monotonic()
                self._timer.resume()
        else:
            self._since = None
            self._timer.pause()
        self._session, self._info = session, info
        self._draw()

    def on_click(self) -> None:
        if self._info.new_lines:
            self.post_message(self.EndWanted())

    class EndWanted(Message):
        """The user clicked on the number of new lines."""

    def _draw(self) -> None:
        info = self._info
        if info.hint:
            self.show(Content.styled(info.hint, "$text-warning"))
            return
        text, style = self._describe()
        parts = [Content.styled(text, style)] if text else []
        parts += [Content.styled(info.new_lines, "bold $text-primary")] if info.new_lines else []
        self.show(Content.styled(" · ", "$foreground-muted").join(parts))

    def _describe(self) -> tuple[str, str]:
        info, session = self._info, self._session
        back = "Esc to go back" if info.is_agent else "Esc Esc to cancel"
        if self._since is None or session is None:
            return ("Sub-agent session · Esc to go back" if info.is_agent else ""), "$foreground-muted"
        if info.request_count:
            return f"● Waiting for you ({info.answer_key})", "$text-warning"
        if session.rejected_provider is not None:
            what = f"● The API key for {session.rejected_provider} was rejected. Run /login to continue"
            return f"{what} · {back}", "$text-warning"
        self._tick += 1
        mark = _SPINNER[self._tick % len(_SPINNER)]
        took = formats.format_duration(time.monotonic() - self._since)
        what = session.describe_wait() or ("Working" if session.active else "Queued")
        return f"{mark} {what} · {took} · {info.send_keys or back}", "$foreground-muted"


def describe_new_lines(count: int, key: str) -> str:
    return f"↓ {count:,} new line{'s' if count > 1 else ''} ({key})" if count else ""


def queue_mark(run: Run) -> str:
    """What a queued prompt waits for: the next step of the running turn, or its own turn."""
    return "↳" if run.on_busy == "steer" else "○"


class Queue(QuietText):
    """Queued prompts, one line each."""

    SHOWN = 3

    def draw(self, session: SessionState | None, key: str) -> None:
        queue = session.queue if session is not None else []
        self.display = bool(queue)
        if not queue:
            return
        lines = [f"{queue_mark(run)} {formats.one_line(run.prompt, 200)}" for run in queue[: self.SHOWN]]
        more = len(queue) - self.SHOWN
        lines.append(f"  {f'and {more} more · ' if more > 0 else ''}{key} to edit, move or send now")
        self.show(Content.styled("\n".join(lines), "$foreground-muted"))


class Elsewhere(NamedTuple):
    """What goes on outside of the session that is shown."""

    jobs: Sequence[str] = ()  # commands that run in the background
    asking: Sequence[str] = ()  # titles of other sessions that wait for the user
    answer_key: str = ""
    mcp: str = ""  # how many MCP servers are ready
    language_servers: Sequence[LspEvent] = ()


MAX_TITLE_CELLS = 24


def _describe_asking(elsewhere: Elsewhere) -> str:
    first, more = formats.one_line(elsewhere.asking[0] or "New session", MAX_TITLE_CELLS), len(elsewhere.asking) - 1
    who = f"{first} and {more} more need" if more else f"{first} needs"
    return f"● {who} you ({elsewhere.answer_key})"


def _describe_running_mode(mode: Mode, session: SessionState | None) -> str:
    """The mode of the running turn, if it is another one than that of the next prompt."""
    running = session.active.mode if session is not None and session.active is not None else None
    return "" if running in (None, mode) else f" (running: {running})"


class StatusLine(Horizontal):
    """Mode, model, directory and branch; context, tokens and cost."""

    def compose(self) -> ComposeResult:
        yield QuietText(id="status-left")
        yield QuietText(id="status-right")

    def draw(
        self,
        mode: Mode,
        model: str,
        session: SessionState | None,
        window: int | None,
        directory: str,
        key: str,
        elsewhere: Elsewhere,
    ) -> None:
        left = Content.assemble(
            (mode, f"bold {_MODES[mode]}"),
            (_describe_running_mode(mode, session), "$foreground-muted"),
            ("  ", ""),
            (model or "no model", "$text"),
            ("  ", ""),
            (directory, "$foreground-muted"),
        )
        self.query_one("#status-left", QuietText).show(left)
        right = [Content.styled(text, "$foreground-muted") for text in [*_numbers(session, window), f"{key} help"]]
        if elsewhere.jobs:
            count = len(elsewhere.jobs)
            right.insert(0, Content.styled(f"{count} job{'s' if count > 1 else ''}", "$text-accent"))
        if elsewhere.asking:
            right.insert(0, Content.styled(_describe_asking(elsewhere), "bold $text-warning"))
        self.query_one("#status-right", QuietText).show(Content.styled(" · ", "$foreground-muted").join(right))


MAX_HEAD_BYTES = 4096  # of a file that names a branch or a repository


def read_branch(directory: str) -> str:
    """Return the branch that is checked out in a directory, or the start of the commit; empty without a repository."""
    inner = Path(directory).absolute()
    for parent in (inner, *inner.parents):
        git = parent / ".git"
        try:
            if git.is_file():  # a worktree or a submodule: the file names the directory
                link = _read_start(git)
                git = parent / link.removeprefix("gitdir:").strip() if link.startswith("gitdir:") else git
            head = _read_start(git / "HEAD")
        except (OSError, ValueError):
            continue
        if not head.startswith("ref:"):
            return head[:7]
        branch = head.removeprefix("ref:").strip().removeprefix("refs/heads/")
        return "" if branch == ".invalid" else branch  # what a repository with another kind of storage has there
    return ""


def _read_start(file: Path) -> str:
    with file.open("rb") as opened:
        return opened.read(MAX_HEAD_BYTES).decode(errors="replace").strip()


def _numbers(session: SessionState | None, window: int | None) -> list[str]:
    numbers: list[str] = []
    if session is None:
        return numbers
    if session.context_tokens and window:
        numbers.append(f"context {min(session.context_tokens * 100 // window, 100)}%")
    if total := session.usage.prompt_tokens + session.usage.output_tokens:
        numbers.append(f"{formats.format_tokens(total)} tokens")
    if price := formats.format_cost(session.usage):
        numbers.append(price)
    return numbers


MOST_JOBS = 5
MOST_SERVERS = 4
MOST_FILES = 20  # the last changed ones; F4 shows all


class Sidebar(VerticalScroll, can_focus=False):
    """The session's title, model, usage, tasks and changed files, where the window is wide enough."""

    def compose(self) -> ComposeResult:
        yield QuietText(id="sidebar-text")

    def draw(
        self,
        title: str,
        model: str,
        session: SessionState | None,
        window: int | None,
        directory: str,
        elsewhere: Elsewhere,
    ) -> None:
        width = max(self.size.width - 4, 20)
        parts: list[Content] = [Content.styled(formats.one_line(title or "New session", width * 2), "bold")]
        parts.append(Content.styled(directory, "$foreground-muted"))
        parts += _section("Model", [Content(model or "none")])
        if session is not None:
            parts += _section("Usage", [Content(line) for line in _usage(session, window)])
            parts += _section("Tasks", [_draw_task(status, text, width) for status, text in session.todos])
            changed = sorted(list(session.files.items())[-MOST_FILES:])
            parts += _section(
                "Changed files", [_draw_file(path, file.added, file.removed, width) for path, file in changed]
            )
        jobs = [Content(f"● {formats.one_line(command, width - 2)}") for command in elsewhere.jobs[:MOST_JOBS]]
        parts += _section(f"Background jobs ({len(elsewhere.jobs)})", jobs)
        parts += _section("MCP servers", [Content(elsewhere.mcp)] if elsewhere.mcp else [])
        servers = [_draw_language_server(each, width) for each in elsewhere.language_servers[:MOST_SERVERS]]
        parts += _section("Language servers (/lsp)", servers)
        asking = [
            Content.styled(f"● {formats.one_line(each, width - 2)}", "$text-warning") for each in elsewhere.asking
        ]
        parts += _section(f"Waiting for you ({elsewhere.answer_key})", asking)
        self.query_one("#sidebar-text", QuietText).show(Content("\n").join(parts))


def _section(name: str, lines: list[Content]) -> list[Content]:
    if not lines:
        return []
    return [Content(""), Content.styled(name, "$text-primary"), *lines]


def _draw_language_server(server: LspEvent, width: int) -> Content:
    name = server.name if server.root in (".", "") else f"{server.name} {server.root}"
    state, ink = "starting…", "$foreground-muted"
    if server.state == "failed":
        state, ink = "failed", "$text-error"
    elif server.state == "ready":
        state, ink = "loading…" if server.is_busy else "ready", "$text-success"
        if server.errors:
            state, ink = f"{server.errors} error{'' if server.errors == 1 else 's'}", "$text-error"
    return Content.assemble((f"{formats.one_line(name, width - len(state) - 3)}  ", ""), (state, ink))


def _draw_task(status: str, text: str, width: int) -> Content:
    mark, style = formats.TASK_MARKS.get(status, "☐"), _TASK_STYLES.get(status, "")
    ink = "$text-success" if status == "completed" else "$text-primary"
    return Content.assemble((f"{mark} ", ink), (formats.one_line(text, width - 2), style))


_TASK_STYLES = {"completed": "$foreground-muted", "in_progress": "bold"}


def _draw_file(path: str, added: int, removed: int, width: int) -> Content:
    """Draw a path and its counts. Of a long path the end is kept: it has the file's name."""
    counts = f"+{added} -{removed}"
    room = max(8, width - len(counts) - 1)
    shown = formats.one_line_end(path, room)
    return Content.assemble(shown, " ", (f"+{added}", "$text-success"), " ", (f"-{removed}", "$text-error"))


def _usage(session: SessionState, window: int | None) -> list[str]:
    lines = formats.describe_usage(session.usage).split(" · ")
    if price := formats.format_cost(session.usage):
        lines.append(price)
    if window and session.context_tokens:
        lines.append(f"Context {session.context_tokens * 100 // window}% of {formats.format_tokens(window)}")
    return lines


_WORDMARK = (
    "█ ▄▀ █▀▀▀ █▀▀▄ ▄▀▀▀ █▀▀▀",
    "█▀▄  █▀▀  █  █ █ ▀█ █▀▀",
    "▀  ▀ ▀▀▀▀ ▀▀▀   ▀▀▀ ▀▀▀▀",
)
EXAMPLES = (
    "Explain how this project is organized",
    "Find out why a test fails, and fix it",
    "Review my uncommitted changes",
)
STARTER = "local/starter"
STARTER_NOTE = "A tiny model, for testing only: /login connects a real one"
MIN_EXAMPLE_LINES = 17  # of the window: below, the examples are left out


class Welcome(QuietText):
    """Shown instead of an empty chat. A click on an example puts it into the editor."""

    def draw(self, directory: str, branch: str, model: str, help_key: str, palette_key: str) -> None:
        hints = (
            (help_key, "Keys and commands"),
            (palette_key, "Command palette"),
            ("@ / !", "Files, commands, shell"),
        )
        width = max(len(key) for key, _ in hints) + 2
        place = f"{directory} ({branch})" if branch else directory
        lines = [
            Content.assemble(("\n".join(_WORDMARK), "$text-primary"), (f"  kedge {VERSION}", "$foreground-muted")),
            Content(""),
            Content.styled(place, "$foreground-muted"),
            Content(model) if model else Content.styled("No model yet", "$foreground-muted"),
            *([Content.styled(STARTER_NOTE, "$text-warning")] if model == STARTER else []),
            Content(""),
        ]
        if self.app.size.height >= MIN_EXAMPLE_LINES:
            lines.append(Content.styled("Try", "$foreground-muted"))
            lines += [_draw_example(text) for text in EXAMPLES]
            lines.append(Content(""))
        lines += [
            Content.assemble((f"{key:<{width}}", "$text-primary"), (what, "$foreground-muted")) for key, what in hints
        ]
        self.show(Content("\n").join(lines))


def _draw_example(text: str) -> Content:
    drawn = Content.assemble(("▸ ", "$text-primary"), text)
    return drawn.stylize(Style.from_meta({"@click": f"screen.suggest({text!r})"}))
