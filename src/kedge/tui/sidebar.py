"""Beside the chat, where there is room: the session, its model, what it took, its tasks and the files it changed."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.content import Content

from kedge.tui import words
from kedge.tui.quiet import Quiet
from kedge.tui.state.session import Page

MOST_FILES = 20  # those that changed last; F4 shows all
_MARKS = {"completed": "✓", "in_progress": "●", "pending": "○"}


class Sidebar(VerticalScroll, can_focus=False):
    def compose(self) -> ComposeResult:
        yield Quiet(id="sidebar-text")

    def draw(self, title: str, model: str, page: Page | None, window: int | None, place: str) -> None:
        width = max(self.size.width - 4, 20)
        parts: list[Content] = [Content.styled(words.one_line(title or "New session", width * 2), "bold")]
        parts.append(Content.styled(place, "$foreground-muted"))
        parts += _section("Model", [model or "none"])
        if page is not None:
            parts += _section("Used", _usage(page, window))
            parts += _section(
                "Tasks", [f"{_MARKS.get(status, '○')} {words.one_line(text, width)}" for status, text in page.todos]
            )
            changed = list(page.files.items())[-MOST_FILES:]
            parts += _section(
                "Changed files",
                [f"{words.one_line(path, width - 10)} +{file.added} -{file.removed}" for path, file in changed],
            )
        self.query_one("#sidebar-text", Quiet).show(Content("\n").join(parts))


def _section(name: str, lines: list[str]) -> list[Content]:
    if not lines:
        return []
    return [Content(""), Content.styled(name, "$foreground-muted"), *(Content(line) for line in lines)]


def _usage(page: Page, window: int | None) -> list[str]:
    usage = page.usage
    lines = [f"{words.tokens(usage.prompt_tokens)} read, {words.tokens(usage.output_tokens)} written"]
    if usage.cache_read_tokens:
        lines.append(f"{words.tokens(usage.cache_read_tokens)} of it from the cache")
    if price := words.cost(usage):
        lines.append(price)
    if window and page.context_tokens:
        lines.append(f"context {page.context_tokens * 100 // window}% of {words.tokens(window)}")
    return lines
