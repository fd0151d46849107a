"""What the interface is connected to and uses (`/status`), and what fills the model's context window (`/context`)."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, NamedTuple

from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widgets import Static

from kedge.protocol.api import ConfigAnswer, ContextKind, LoginProvider, Offered, SessionContext
from kedge.protocol.text_safety import visible, visible_line
from kedge.tui import formats
from kedge.tui.dialogs.dialog import FRAME_CELLS, MAX_WIDTH, Dialog
from kedge.version import VERSION

if TYPE_CHECKING:
    from kedge.tui.settings import Launch

_MUTED = "$foreground-muted"


class TextDialog(Dialog[None]):
    """Text that scrolls if it is longer than the screen."""

    FOOTER = "↑↓ scroll · Esc close"

    def __init__(self, title: str, draw: Callable[[int], Content]) -> None:
        """`draw` returns the text for a number of cells in a line."""
        super().__init__(title)
        self._draw = draw

    def body(self) -> ComposeResult:
        with VerticalScroll():
            yield Static(markup=False, id="text")

    def on_mount(self) -> None:
        self.query_one(VerticalScroll).focus()

    def on_resize(self) -> None:
        cells = min(self.app.size.width * 9 // 10, MAX_WIDTH) - FRAME_CELLS
        self.query_one("#text", Static).update(self._draw(cells))


_NAMES: dict[ContextKind, str] = {
    "system": "System prompt",
    "instructions": "Instruction files",
    "tools": "Tools",
    "mcp_tools": "MCP tools",
    "notes": "System notes",
    "summary": "Summary",
    "prompts": "Prompts",
    "answers": "Answers",
    "reasoning": "Reasoning",
    "tool_results": "Tool calls and results",
}
BAR_CELLS = 24


def draw_context(context: SessionContext) -> Content:
    """Draw a bar for each kind of content, as a share of the window (or of what is used, if the window is unknown)."""
    window = context.context_window
    whole = window or context.used_tokens or 1
    about = "About " if context.estimated else ""
    size = f" of {formats.format_tokens(window)}" if window else ""
    percent = f" ({context.used_tokens * 100 // window}%)" if window else ""
    lines = [Content(f"{about}{formats.format_tokens(context.used_tokens)}{size} tokens{percent}")]
    lines.append(Content.styled(visible_line(context.model or "no model"), _MUTED))
    lines.append(Content(""))
    rows = [(_NAMES[part.kind], part.tokens, "$primary") for part in context.parts if part.tokens]
    if context.free_tokens is not None:
        rows.append(("Free", context.free_tokens, _MUTED))
    width = max((len(name) for name, _, _ in rows), default=0)
    lines += [_draw_bar(name, tokens, whole, width, color) for name, tokens, color in rows]
    if context.summarize_at_tokens is not None:
        at = formats.format_tokens(context.summarize_at_tokens)
        lines += [Content(""), Content.styled(f"Summarized automatically at {at} tokens, or now with /compact", _MUTED)]
    lines.append(Content.styled("The sizes of the parts are estimates.", _MUTED))
    return Content("\n").join(lines)


def _draw_bar(name: str, tokens: int, whole: int, width: int, color: str) -> Content:
    eighths = min(round(tokens * BAR_CELLS * 8 / whole), BAR_CELLS * 8)
    bar = "█" * (eighths // 8) + ("" if eighths % 8 == 0 else " ▏▎▍▌▋▊▉"[eighths % 8])
    percent = f"{tokens * 100 / whole:.1f}%"
    return Content.assemble(
        f"{name:<{width}}  ",
        (f"{bar or '▏':<{BAR_CELLS}}", color),
        f"  {formats.format_tokens(tokens):>6}",
        (f"  {percent:>6}", _MUTED),
    )


class ShownSession(NamedTuple):
    """What the interface shows now: its session, and what the next prompt would use."""

    session_id: str | None
    title: str
    model: str
    window: int | None
    context_tokens: int
    mode: str


def draw_status(
    launch: Launch,
    shown: ShownSession,
    offered: Offered,
    config: ConfigAnswer,
    server_version: str,
    providers: Sequence[LoginProvider],
    cells: int,
) -> Content:
    """Draw what a person needs to know when something does not work as expected, in lines of at most `cells`."""
    values = {value.key: value.value for value in config.values}
    model = shown.model or "none"
    window = f"{formats.format_tokens(shown.window)} tokens" if shown.window else "unknown size"
    used = f"{formats.format_tokens(shown.context_tokens)} of " if shown.context_tokens else ""
    rows = [
        ("Version", VERSION + ("" if server_version == VERSION else f", server {server_version}")),
        ("Server", visible_line(launch.host or "on this machine (Unix socket)")),
        ("Workspace", visible_line(str(Path(launch.directory).absolute()))),
        (
            "Session",
            visible_line(f"{shown.session_id}  {shown.title}") if shown.session_id else "new",
        ),
        ("Model", visible_line(model)),
        ("", visible_line(offered.why) if model == offered.model else "chosen for this session or command line"),
        ("Endpoint", visible_line(_find_endpoint(model, offered, values, providers))),
        ("Context", f"{used}{window}"),
        ("Mode", shown.mode),
        ("Sandbox", visible_line(_describe_sandbox(values))),
    ]
    files = [file for file in config.files if file.exists]
    for index, file in enumerate(files or [None]):
        text = (
            "none"
            if file is None
            else file.path
            if file.trusted
            else f"{file.path}  (not trusted: some keys are ignored)"
        )
        rows.append(("Configuration" if index == 0 else "", visible_line(text)))
    width = max(len(name) for name, _ in rows)
    lines = [line for name, text in rows for line in _draw_row(name, text, width, cells)]
    lines += [
        Content.styled(visible(f"{each.file}:{each.line}: {each.key} is ignored ({each.why})"), "$text-warning")
        for each in config.ignored
    ]
    return Content("\n").join(lines)


def _draw_row(name: str, text: str, width: int, cells: int) -> list[Content]:
    """Draw a name and its value. A long value is wrapped into its own column."""
    wrapped = wrap(text, max(cells - width - 2, 10), break_on_hyphens=False) or [""]
    return [
        Content.assemble((f"{name if at == 0 else '':<{width}}  ", _MUTED), line) for at, line in enumerate(wrapped)
    ]


def _find_endpoint(model: str, offered: Offered, values: dict[str, object], providers: Sequence[LoginProvider]) -> str:
    provider = model.partition("/")[0]
    if provider == "local":
        return "none: it runs on this machine"
    variable = next((each.url_variable for each in providers if each.provider_id == provider), "")
    url = values.get(f"providers.{provider}.base_url") or os.environ.get(variable) or "the provider's own address"
    why = next((each.why for each in offered.providers if each.id == provider), "")
    return f"{url}{f'  ({why})' if why and str(url) not in why else ''}"


def _describe_sandbox(values: dict[str, object]) -> str:
    mode = values.get("sandbox.mode", "off")
    unapproved = "commands that nobody approved run in a read-only sandbox"
    return f"{mode}; {unapproved}"
