"""Widgets around the chat and the editor: banner, activity, queue, status line, sidebar, welcome."""

from __future__ import annotations

import time
from typing import NamedTuple

from textual.app import ComposeResult
from textual.containers import Horizontal, VerticalScroll
from textual.content import Content
from textual.widgets import Static

from kedge.protocol.runs import Mode
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


class Activity(QuietText):
    """The line above the editor: a hint, or the session's activity. Its timer runs only while it is busy."""

    def __init__(self) -> None:
        super().__init__()
        self._since: float | None = None
        self._session: SessionState | None = None
        self._info = ActivityInfo()
        self._tick = 0

    def on_mount(self) -> None:
        self._timer = self.set_interval(TICK_S, self._draw, pause=True)

    def draw(self, session: SessionState | None, info: ActivityInfo) -> None:
        is_busy = session is not None and session.is_busy
        if is_busy and (self._since is None or session is not self._session):
            self._since = time.monotonic()
            self._timer.resume()
        elif not is_busy:
            self._since = None
            self._timer.pause()
        self._session, self._info = session, info
        self._draw()

    def _draw(self) -> None:
        info = self._info
        if info.hint:
            self.show(Content.styled(info.hint, "$text-warning"))
        elif self._since is None or self._session is None:
            self.show(
                Content.styled("Sub-agent session · Esc to go back", "$foreground-muted") if info.is_agent else _NONE
            )
        elif info.request_count:
            self.show(Content.styled(f"● Waiting for you ({info.answer_key})", "$text-warning"))
        else:
            self._tick += 1
            took = formats.format_duration(time.monotonic() - self._since)
            mark = _SPINNER[self._tick % len(_SPINNER)]
            what = self._session.describe_wait() or ("Working" if self._session.active else "Queued")
            keys = "Esc to go back" if info.is_agent else "Esc Esc to cancel"
            self.show(Content.styled(f"{mark} {what} · {took} · {keys}", "$foreground-muted"))


class Queue(QuietText):
    """Queued prompts, one line each."""

    SHOWN = 3

    def draw(self, session: SessionState | None, key: str) -> None:
        queue = session.queue if session is not None else []
        self.display = bool(queue)
        if not queue:
            return
        lines = [f"○ {formats.one_line(run.prompt, 200)}" for run in queue[: self.SHOWN]]
        more = len(queue) - self.SHOWN
        lines.append(f"  {f'and {more} more · ' if more > 0 else ''}{key} to edit or remove")
        self.show(Content.styled("\n".join(lines), "$foreground-muted"))


class StatusLine(Horizontal):
    """Mode, model and directory; context, tokens and cost."""

    def compose(self) -> ComposeResult:
        yield QuietText(id="status-left")
        yield QuietText(id="status-right")

    def draw(
        self, mode: Mode, model: str, session: SessionState | None, window: int | None, directory: str, key: str
    ) -> None:
        left = Content.assemble(
            (mode, f"bold {_MODES[mode]}"),
            ("  ", ""),
            (model or "no model", "$text"),
            ("  ", ""),
            (directory, "$foreground-muted"),
        )
        self.query_one("#status-left", QuietText).show(left)
        numbers = [*_numbers(session, window), f"{key} help"]
        self.query_one("#status-right", QuietText).show(Content.styled(" · ".join(numbers), "$foreground-muted"))


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


MOST_FILES = 20  # the last changed ones; F4 shows all
_MARKS = {"completed": "✓", "in_progress": "●", "pending": "○"}


class Sidebar(VerticalScroll, can_focus=False):
    """The session's title, model, usage, tasks and changed files, where the window is wide enough."""

    def compose(self) -> ComposeResult:
        yield QuietText(id="sidebar-text")

    def draw(self, title: str, model: str, session: SessionState | None, window: int | None, directory: str) -> None:
        width = max(self.size.width - 4, 20)
        parts: list[Content] = [Content.styled(formats.one_line(title or "New session", width * 2), "bold")]
        parts.append(Content.styled(directory, "$foreground-muted"))
        parts += _section("Model", [model or "none"])
        if session is not None:
            parts += _section("Usage", _usage(session, window))
            parts += _section(
                "Tasks",
                [f"{_MARKS.get(status, '○')} {formats.one_line(text, width)}" for status, text in session.todos],
            )
            changed = list(session.files.items())[-MOST_FILES:]
            parts += _section(
                "Changed files",
                [f"{formats.one_line(path, width - 10)} +{file.added} -{file.removed}" for path, file in changed],
            )
        self.query_one("#sidebar-text", QuietText).show(Content("\n").join(parts))


def _section(name: str, lines: list[str]) -> list[Content]:
    if not lines:
        return []
    return [Content(""), Content.styled(name, "$foreground-muted"), *(Content(line) for line in lines)]


def _usage(session: SessionState, window: int | None) -> list[str]:
    usage = session.usage
    cached = f" ({formats.format_tokens(usage.cache_read_tokens)} cached)" if usage.cache_read_tokens else ""
    lines = [
        f"{formats.format_tokens(usage.prompt_tokens)} in{cached}",
        f"{formats.format_tokens(usage.output_tokens)} out",
    ]
    if price := formats.format_cost(usage):
        lines.append(price)
    if window and session.context_tokens:
        lines.append(f"Context {session.context_tokens * 100 // window}% of {formats.format_tokens(window)}")
    return lines


class Welcome(QuietText):
    """Shown instead of an empty chat."""

    def draw(self, directory: str, model: str, help_key: str, palette_key: str) -> None:
        hints = (
            (help_key, "Keys and commands"),
            (palette_key, "Command palette"),
            ("@ / !", "Files, commands, shell"),
        )
        width = max(len(key) for key, _ in hints) + 2
        lines = [
            Content.assemble(("kedge", "bold $primary"), (f" {VERSION}", "$foreground-muted")),
            Content.styled(directory, "$foreground-muted"),
            Content(model) if model else Content.styled("No model yet", "$foreground-muted"),
            Content(""),
            *(Content.assemble((f"{key:<{width}}", "$text"), (what, "$foreground-muted")) for key, what in hints),
        ]
        self.show(Content("\n").join(lines))
