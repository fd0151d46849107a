"""A tool call on the screen: one line that says what it does and how it stands, and below it what came of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from rich.segment import Segment
from rich.style import Style

from kedge.protocol.text_safety import visible, visible_line
from kedge.tui.chat.diffs import MIN_SPLIT, counts, diff_lines
from kedge.tui.chat.lines import Line, indented, truncate, wrap
from kedge.tui.chat.outputs import MAX_LINES, count_lines, first_lines, last_lines, more_lines
from kedge.tui.chat.palette import Palette
from kedge.tui.chat.partial_json import Json, parsed
from kedge.tui.chat.subjects import items, subject, text
from kedge.tui.story.blocks import Block, Call

FOLDED_OUTPUT = 10  # lines of a command that are seen without asking
FOLDED_DIFF = 20
FOLDED_ERROR = 6
FOLDED_OTHER = 3
FOLDED_CHILDREN = 4  # what a sub-agent did last

_BOLD = Style(bold=True)
_QUIET = {"view", "glob", "grep", "ls", "fetch", "download", "job_kill"}  # their results are for the model
_MARKS = {
    "writing": ("○", "muted"),
    "asking": ("●", "warning"),
    "waiting": ("○", "muted"),
    "running": ("●", "primary"),
    "done": ("✓", "success"),
    "failed": ("✗", "error"),
    "interrupted": ("✗", "muted"),
}
_STATES = {"asking": "waits for your answer", "interrupted": "interrupted"}
_TODOS = {"completed": "☑", "in_progress": "◐", "pending": "☐"}


class Look(NamedTuple):
    """How a reader wants to see a block."""

    is_unfolded: bool = False
    is_split: bool | None = None  # diffs; None lets the width decide


DrawChild = Callable[[Block, int, Palette], list[Line]]


def diff_of(call: Call) -> str:
    diff = (call.result.metadata or {}).get("diff") if call.result else None
    return diff if isinstance(diff, str) else ""


def call_lines(call: Call, look: Look, width: int, palette: Palette, draw_child: DrawChild) -> list[Line]:
    given = parsed(call.input)
    head = _header(call, given, look, width, palette)
    body = _body(call, given, look, max(1, width - 2), palette, draw_child)
    return [*head, *indented(body, [Segment("  ")])]


def _header(call: Call, given: Json, look: Look, width: int, palette: Palette) -> list[Line]:
    mark, ink = _MARKS[call.state]
    style: Style = getattr(palette, ink)
    start: Line = [Segment(f"{mark} ", style), Segment(visible_line(call.name) or "…", palette.text + _BOLD)]
    about = subject(call.name, given)
    suffix = _suffix(call, look, palette)
    if look.is_unfolded:
        return indented(wrap([*start[1:], Segment(f" {about}", palette.text), *suffix], width - 2), start[:1], _SPACE)
    room = width - sum(len(segment.text) for segment in [*start, *suffix])
    shown = truncate([Segment(f" {about}", palette.text)], max(0, room)) if about else []
    return [truncate([*start, *shown, *suffix], width)]


_SPACE: Line = [Segment("  ")]


def _suffix(call: Call, look: Look, palette: Palette) -> Line:
    """What is to be known at a glance."""
    metadata = call.result.metadata or {} if call.result else {}
    line: Line = []
    if diff_of(call):
        added, removed = metadata.get("added"), metadata.get("removed")
        if isinstance(added, int) and isinstance(removed, int):
            line += [Segment("  "), *counts(added, removed, palette)]
    code = metadata.get("exit_code")
    if isinstance(code, int) and code:
        line.append(Segment(f"  exit {code}", palette.error))
    if metadata.get("timed_out"):
        line.append(Segment("  timed out", palette.error))
    if isinstance(job := metadata.get("job_id"), str) and call.name == "bash":
        line.append(Segment(f"  job {visible_line(job)}", palette.muted))
    if call.state in _STATES:
        line.append(Segment(f"  {_STATES[call.state]}", palette.warning if call.state == "asking" else palette.muted))
    elif call.state == "writing" and len(call.input) > 1000:
        line.append(Segment(f"  {len(call.input) / 1000:.1f} kB", palette.muted))
    elif call.state == "done" and call.name in _QUIET and not look.is_unfolded:
        total = count_lines(call.output)
        line.append(Segment(f"  {total:,} line{'s' if total != 1 else ''}", palette.muted))
    if call.images:
        line.append(Segment(f"  ▣ {call.images} image{'s' if call.images > 1 else ''}", palette.muted))
    if call.child and not look.is_unfolded and call.state != "running":
        calls = sum(isinstance(block, Call) for block in call.child)
        line.append(Segment(f"  {calls} call{'s' if calls != 1 else ''}", palette.muted))
    return line


def _body(call: Call, given: Json, look: Look, width: int, palette: Palette, draw_child: DrawChild) -> list[Line]:
    is_open = look.is_unfolded
    lines: list[Line] = []
    if is_open and call.name == "bash" and "\n" in (command := text(given, "command").strip()):
        lines += first_lines(command, MAX_LINES, width, palette.secondary, palette)
    if call.state == "failed":
        # A command that failed says why at its end, a tool at its beginning.
        if call.name == "bash":
            lines += last_lines(call.output, MAX_LINES if is_open else FOLDED_OUTPUT, width, palette.text, palette)
        else:
            lines += first_lines(
                call.output, MAX_LINES if is_open else FOLDED_ERROR, width, palette.error, palette, wrap
            )
    elif diff := diff_of(call):
        lines += _diff(diff, look, width, palette)
    elif call.name == "todos":
        lines += _todos(call, given, width, palette)
    elif call.name == "agent":
        lines += _agent(call, look, width, palette, draw_child)
    elif call.name in ("bash", "job_output"):
        lines += last_lines(call.output, MAX_LINES if is_open else FOLDED_OUTPUT, width, palette.muted, palette)
    elif is_open or call.name not in _QUIET:
        lines += first_lines(call.output, MAX_LINES if is_open else FOLDED_OTHER, width, palette.muted, palette)
    return lines


def _diff(diff: str, look: Look, width: int, palette: Palette) -> list[Line]:
    split = width + 4 >= MIN_SPLIT if look.is_split is None else look.is_split
    lines = diff_lines(diff, width, palette, split=split and width >= 60)
    limit = MAX_LINES if look.is_unfolded else FOLDED_DIFF
    return lines if len(lines) <= limit else [*lines[:limit], more_lines(len(lines) - limit, palette)]


def _todos(call: Call, given: Json, width: int, palette: Palette) -> list[Line]:
    metadata: Json = (call.result.metadata or {}) if call.result else {}
    lines: list[Line] = []
    for todo in items(metadata, "todos") or items(given, "todos"):
        status = text(todo, "status")
        style = {"completed": palette.muted, "in_progress": palette.text + _BOLD}.get(status, palette.text)
        mark = Segment(f"{_TODOS.get(status, '☐')} ", palette.success if status == "completed" else palette.secondary)
        lines += indented(wrap([Segment(visible(text(todo, "content")), style)], width - 2), [mark], _SPACE)
    return lines


def _agent(call: Call, look: Look, width: int, palette: Palette, draw_child: DrawChild) -> list[Line]:
    children = [block for block in call.child if look.is_unfolded or isinstance(block, Call)]
    if not look.is_unfolded:
        children = children[-FOLDED_CHILDREN:] if call.state == "running" else []
    lines: list[Line] = []
    for block in children:
        drawn = draw_child(block, max(1, width - 2), palette)
        lines += indented(drawn if look.is_unfolded else drawn[:1], [Segment("│ ", palette.muted)])
    limit = MAX_LINES if look.is_unfolded else FOLDED_OTHER
    lines = lines if len(lines) <= MAX_LINES else [more_lines(len(lines) - MAX_LINES, palette), *lines[-MAX_LINES:]]
    return lines + first_lines(call.output, limit, width, palette.muted, palette)


def plain_call(call: Call) -> str:
    """What is copied of a call: its command or subject, and what came of it."""
    given = parsed(call.input)
    about = text(given, "command") if call.name == "bash" else subject(call.name, given)
    return "\n".join(filter(None, [f"{call.name} {about}".strip(), diff_of(call) or call.output]))
