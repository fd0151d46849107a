"""The lines around the editor: what is going on, what waits, and what it took."""

from __future__ import annotations

import time

from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.content import Content
from textual.widgets import Static

from kedge.tui import words
from kedge.tui.desk import Mode
from kedge.tui.link import Link
from kedge.tui.story.page import Page

_MODES: dict[Mode, str] = {"plan": "$accent", "ask": "$text-muted", "auto-edit": "$warning", "yolo": "$error"}
_SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"


class Banner(Static):
    """Shown while the server is not there."""

    def draw(self, link: Link) -> None:
        is_up = link.state == "live"
        self.display = not is_up and not (link.state == "connecting" and not link.error)
        if is_up:
            return
        what = "The server cannot be reached" if link.state == "lost" else "The server does not let us in"
        self.update(
            Content.from_markup("$what: trying again. Nothing is lost. [dim]$why[/dim]", what=what, why=link.error)
        )


class Activity(Static):
    """What the session is doing; ticks only while it does."""

    def __init__(self) -> None:
        super().__init__("")
        self._since: float | None = None
        self._page: Page | None = None
        self._asked = 0
        self._hint = ""
        self._tick = 0

    def on_mount(self) -> None:
        self._timer = self.set_interval(0.1, self._draw, pause=True)

    def draw(self, page: Page | None, asked: int, hint: str) -> None:
        is_busy = page is not None and page.is_busy
        if is_busy and (self._since is None or page is not self._page):
            self._since = time.monotonic()
            self._timer.resume()
        elif not is_busy:
            self._since = None
            self._timer.pause()
        self._page, self._asked, self._hint = page, asked, hint
        self._draw()

    def _draw(self) -> None:
        if self._hint:
            self.update(Content.styled(self._hint, "$warning"))
        elif self._since is None or self._page is None:
            self.update("")
        elif self._asked:
            self.update(Content.styled("● Waiting for your answer · F2", "$warning"))
        else:
            self._tick += 1
            took = words.duration(time.monotonic() - self._since)
            mark = _SPINNER[self._tick % len(_SPINNER)]
            what = "Working" if self._page.active else "Waiting for its turn"
            self.update(Content.styled(f"{mark} {what} · {took} · Esc Esc cancels", "$text-muted"))


class Queue(Static):
    """Prompts that wait, one line each."""

    SHOWN = 3

    def draw(self, page: Page | None) -> None:
        queue = page.queue if page is not None else []
        self.display = bool(queue)
        if not queue:
            return
        width = max(self.screen.size.width - 16, 20)
        lines = [f"⏳ {words.one_line(run.prompt, width)}" for run in queue[: self.SHOWN]]
        more = len(queue) - self.SHOWN
        lines.append(f"   {f'and {more} more · ' if more > 0 else ''}Ctrl+T edits or drops")
        self.update(Content.styled("\n".join(lines), "$text-muted"))


class StatusLine(Horizontal):
    """Mode, model and directory; context, tokens and cost."""

    def compose(self) -> ComposeResult:
        yield Static(id="status-left")
        yield Static(id="status-right")

    def draw(self, mode: Mode, model: str, page: Page | None, window: int | None, place: str) -> None:
        left = Content.assemble(
            (f"{mode}", f"bold {_MODES[mode]}"),
            ("  ", ""),
            (model or "no model", "$text"),
            ("  ", ""),
            (place, "$text-muted"),
        )
        self.query_one("#status-left", Static).update(left)
        self.query_one("#status-right", Static).update(Content.styled(_numbers(page, window), "$text-muted"))


def _numbers(page: Page | None, window: int | None) -> str:
    if page is None:
        return "F1 help"
    numbers: list[str] = []
    used = page.context_tokens
    if used and window:
        numbers.append(f"context {min(used * 100 // window, 100)}%")
    if total := page.usage.prompt_tokens + page.usage.output_tokens:
        numbers.append(f"{words.tokens(total)} tokens")
    if price := words.cost(page.usage):
        numbers.append(price)
    return " · ".join([*numbers, "F1 help"])
