"""A text that is drawn only when it changed, and lays out the screen again only when its size may have."""

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
    def __init__(self, *, id: str | None = None) -> None:
        super().__init__("", id=id, markup=False)
        self._shown = Content("")

    def show(self, content: Content) -> None:
        if content != self._shown or content.spans != self._shown.spans:  # `==` is of the words only
            before, self._shown = self._shown, content
            is_sized = content.cell_length != before.cell_length or "\n" in content.plain
            self.update(content, layout=is_sized)


# The lines around the editor: what is going on, what waits, and what it took.


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
    """Shown while the server is not there."""

    def draw(self, sync: Sync) -> None:
        is_up = sync.state == "live"
        self.display = not is_up and not (sync.state == "connecting" and not sync.error)
        if is_up:
            return
        what = "The server cannot be reached" if sync.state == "lost" else "The server does not let us in"
        why = f" ({formats.one_line(sync.error, 200)})" if sync.error else ""
        self.show(Content(f"{what}: trying again. Nothing is lost.{why}"))


class ActivityInfo(NamedTuple):
    """What is said above the editor, apart from what runs."""

    asked: int = 0  # requests that wait for the person
    answer_key: str = ""
    hint: str = ""
    is_agent: bool = False  # a sub-agent's session is looked at


class Activity(QuietText):
    """What the session is doing; ticks only while it does."""

    def __init__(self) -> None:
        super().__init__()
        self._since: float | None = None
        self._session: SessionState | None = None
        self._doing = ActivityInfo()
        self._tick = 0

    def on_mount(self) -> None:
        self._timer = self.set_interval(TICK_S, self._draw, pause=True)

    def draw(self, session: SessionState | None, doing: ActivityInfo) -> None:
        is_busy = session is not None and session.is_busy
        if is_busy and (self._since is None or session is not self._session):
            self._since = time.monotonic()
            self._timer.resume()
        elif not is_busy:
            self._since = None
            self._timer.pause()
        self._session, self._doing = session, doing
        self._draw()

    def _draw(self) -> None:
        doing = self._doing
        if doing.hint:
            self.show(Content.styled(doing.hint, "$text-warning"))
        elif self._since is None or self._session is None:
            self.show(
                Content.styled("A sub-agent's session · Esc goes back", "$foreground-muted")
                if doing.is_agent
                else _NONE
            )
        elif doing.asked:
            self.show(Content.styled(f"● Waiting for your answer · {doing.answer_key}", "$text-warning"))
        else:
            self._tick += 1
            took = formats.duration(time.monotonic() - self._since)
            mark = _SPINNER[self._tick % len(_SPINNER)]
            what = "Working" if self._session.active else "Waiting for its turn"
            way = "Esc goes back" if doing.is_agent else "Esc Esc cancels"
            self.show(Content.styled(f"{mark} {what} · {took} · {way}", "$foreground-muted"))


class Queue(QuietText):
    """Prompts that wait, one line each."""

    SHOWN = 3

    def draw(self, session: SessionState | None, key: str) -> None:
        queue = session.queue if session is not None else []
        self.display = bool(queue)
        if not queue:
            return
        lines = [f"○ {formats.one_line(run.prompt, 200)}" for run in queue[: self.SHOWN]]
        more = len(queue) - self.SHOWN
        lines.append(f"  {f'and {more} more · ' if more > 0 else ''}{key} edits or drops")
        self.show(Content.styled("\n".join(lines), "$foreground-muted"))


class StatusLine(Horizontal):
    """Mode, model and directory; context, tokens and cost."""

    def compose(self) -> ComposeResult:
        yield QuietText(id="status-left")
        yield QuietText(id="status-right")

    def draw(
        self, mode: Mode, model: str, session: SessionState | None, window: int | None, place: str, key: str
    ) -> None:
        left = Content.assemble(
            (mode, f"bold {_MODES[mode]}"),
            ("  ", ""),
            (model or "no model", "$text"),
            ("  ", ""),
            (place, "$foreground-muted"),
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
        numbers.append(f"{formats.tokens(total)} tokens")
    if price := formats.cost(session.usage):
        numbers.append(price)
    return numbers


# Beside the chat, where there is room: the session, its model, what it took, its tasks and the files it changed.


MOST_FILES = 20  # those that changed last; F4 shows all
_MARKS = {"completed": "✓", "in_progress": "●", "pending": "○"}


class Sidebar(VerticalScroll, can_focus=False):
    def compose(self) -> ComposeResult:
        yield QuietText(id="sidebar-text")

    def draw(self, title: str, model: str, session: SessionState | None, window: int | None, place: str) -> None:
        width = max(self.size.width - 4, 20)
        parts: list[Content] = [Content.styled(formats.one_line(title or "New session", width * 2), "bold")]
        parts.append(Content.styled(place, "$foreground-muted"))
        parts += _section("Model", [model or "none"])
        if session is not None:
            parts += _section("Used", _usage(session, window))
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
    lines = [f"{formats.tokens(usage.prompt_tokens)} read, {formats.tokens(usage.output_tokens)} written"]
    if usage.cache_read_tokens:
        lines.append(f"{formats.tokens(usage.cache_read_tokens)} of it from the cache")
    if price := formats.cost(usage):
        lines.append(price)
    if window and session.context_tokens:
        lines.append(f"context {session.context_tokens * 100 // window}% of {formats.tokens(window)}")
    return lines


# What an empty session shows: where one is, what answers, and how to begin.


class Welcome(QuietText):
    """In the place of the chat until there is one."""

    def draw(self, place: str, model: str, help_key: str, palette_key: str) -> None:
        hints = (
            (help_key, "keys and commands"),
            (palette_key, "command palette"),
            ("@ / !", "a file, a command, a shell"),
        )
        width = max(len(key) for key, _ in hints) + 2
        lines = [
            Content.assemble(("kedge", "bold $primary"), (f" {VERSION}", "$foreground-muted")),
            Content.styled(place, "$foreground-muted"),
            Content(model) if model else Content.styled("no model yet", "$foreground-muted"),
            Content(""),
            *(Content.assemble((f"{key:<{width}}", "$text"), (what, "$foreground-muted")) for key, what in hints),
        ]
        self.show(Content("\n").join(lines))
