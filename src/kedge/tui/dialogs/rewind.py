"""The prompts of a session, to go back to one of them; its timeline, with what changed which file."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence

from textual import on, work
from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from kedge.client.errors import ClientError
from kedge.protocol.files import FileStep, Rewound, Timeline, TimelineCall, TimelineFile, TimelineTurn, TimelineUndo
from kedge.protocol.obstacles import UNSURE, describe_obstacle
from kedge.protocol.text_safety import visible
from kedge.tui import formats
from kedge.tui.dialogs.dialog import FRAME_CELLS, MAX_WIDTH, Dialog

SHOWN_FILES = 8  # in the preview of a prompt
PREVIEW_S = 0.15  # so long a prompt is highlighted before its preview is asked for
_MUTED = "$foreground-muted"
EFFECTS = {"created": "restored", "modified": "changed back", "deleted": "deleted"}
Preview = Callable[[str], Awaitable[Rewound]]


def format_lines(added: int | None, removed: int | None) -> str:
    return "" if added is None or removed is None else f"+{added} -{removed}"


def describe_step(step: FileStep) -> str:
    """Return one line on what an undo does to a file, or why it leaves it."""
    path = visible(step.path)
    if step.obstacle in UNSURE:
        return f"? {path} is not changed ({describe_obstacle(step.obstacle)})"
    left = f" ({describe_obstacle(step.obstacle)})" if step.obstacle else ""
    lines = f"  {format_lines(step.added, step.removed)}" if step.added or step.removed else ""
    return f"{'⚠' if step.obstacle else '·'} {path} will be {EFFECTS[step.status]}{lines}{left}"


class RewindDialog(Dialog[str]):
    """Returns the message id of a prompt. Below the list: what going back to before the highlighted one changes."""

    FOOTER = "↑↓ prompt · Enter go back to before it · Esc close"

    def __init__(self, timeline: Timeline, preview: Preview) -> None:
        super().__init__("Go back to")
        self._turns = {turn.message_id: turn for turn in timeline.turns if turn.state == "current"}
        self._omitted = timeline.omitted
        self._preview = preview

    def body(self) -> ComposeResult:
        if self._omitted:
            yield Static(f"{self._omitted} earlier prompts are not listed", classes="note", markup=False)
        yield OptionList(markup=False, id="prompts")
        yield Static("", id="preview", markup=False)

    def on_mount(self) -> None:
        self._draw()
        self.query_one(OptionList).focus()

    def on_resize(self) -> None:
        self._draw()

    def _draw(self) -> None:
        options = self.query_one(OptionList)
        highlighted = options.highlighted
        width = min(self.app.size.width * 9 // 10, MAX_WIDTH) - FRAME_CELLS
        totals = {key: _describe_total(turn) for key, turn in self._turns.items()}
        total_width = max(map(len, totals.values()), default=0)
        options.clear_options()
        options.add_options(
            Option(_draw_turn(turn, totals[key], total_width, width), id=key) for key, turn in self._turns.items()
        )
        options.highlighted = len(self._turns) - 1 if highlighted is None else highlighted

    @on(OptionList.OptionHighlighted)
    def _highlight(self, event: OptionList.OptionHighlighted) -> None:
        self._show_preview(event.option_id or "")

    @work(exclusive=True, group="preview")
    async def _show_preview(self, message_id: str) -> None:
        preview = self.query_one("#preview", Static)
        await asyncio.sleep(PREVIEW_S)
        try:
            plan = await self._preview(message_id)
        except ClientError as error:
            preview.update(visible(str(error)))
            return
        lines = [describe_step(step) for step in plan.files[:SHOWN_FILES]]
        if len(plan.files) > SHOWN_FILES:
            lines.append(f"and {len(plan.files) - SHOWN_FILES} more files")
        notes = [visible(note) for note in plan.notes]
        preview.update("\n".join([*(lines or ["No file changes."]), *notes]))

    @on(OptionList.OptionSelected)
    def _select(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(event.option_id)


def _describe_total(turn: TimelineTurn) -> str:
    back = turn.back
    doubt = f" +{back.unsure}?" if back.unsure else ""
    if not back.files:
        return f"no files{doubt}"
    return f"{back.files} file{'' if back.files == 1 else 's'}{doubt}  {format_lines(back.added, back.removed)}"


def _draw_turn(turn: TimelineTurn, total: str, total_width: int, width: int) -> Content:
    age = formats.format_age(time.time() - turn.created_at)
    prompt = formats.one_line(turn.prompt, max(width - total_width - 14, 10))
    gap = " " * max(width - total_width - 14 - Content(prompt).cell_length, 0)
    return Content.assemble((prompt, ""), gap, (f"  {age:>9}", _MUTED), (f"  {total:<{total_width}}", _MUTED))


class TimelineDialog(Dialog[None]):
    """Every prompt with the calls that changed files, the undos in between, and marks for what is unsure."""

    FOOTER = "↑↓ scroll · Esc close"

    def __init__(self, timeline: Timeline) -> None:
        super().__init__("Timeline")
        self._timeline = timeline

    def body(self) -> ComposeResult:
        with VerticalScroll():
            yield Static(_draw_timeline(self._timeline), id="timeline", markup=False)

    def on_mount(self) -> None:
        scroll = self.query_one(VerticalScroll)
        scroll.focus()
        scroll.scroll_end(animate=False)


_UNDONE = {"both": "Files and conversation", "files": "Files", "conversation": "Conversation"}
_STATES = {
    "undone": "went back to before “{prompt}” (/redo reverts this)",
    "redone": "went back to before “{prompt}”, and forward again",
    "dropped": "went back to before “{prompt}”",
}


def _draw_timeline(timeline: Timeline) -> Content:
    prompts = {turn.message_id: turn.prompt for turn in timeline.turns}
    lines: list[Content] = []
    if timeline.omitted:
        lines.append(Content.styled(f"{timeline.omitted} earlier prompts are not listed", _MUTED))
    entries: Sequence[TimelineTurn | TimelineUndo] = sorted(
        [*timeline.turns, *timeline.undos], key=lambda entry: entry.seq
    )
    for entry in entries:
        if isinstance(entry, TimelineTurn):
            lines += _draw_entry(entry)
        else:
            prompt = formats.one_line(prompts.get(entry.message_id, "an earlier prompt"), 60)
            what = _STATES[entry.state].format(prompt=prompt)
            lines.append(Content.styled(f"↶ {_UNDONE[entry.restore]} {what}", "$text-warning"))
    lines += [Content.styled(visible(note), _MUTED) for note in timeline.notes]
    if any(file.unsure for turn in timeline.turns for call in turn.calls for file in call.files):
        lines.append(Content.styled("? may be your own work: going back leaves it, unless you include it", _MUTED))
    return Content("\n").join(lines or [Content("No prompts yet")])


def _draw_entry(turn: TimelineTurn) -> list[Content]:
    age = formats.format_age(time.time() - turn.created_at)
    gone = "" if turn.state == "current" else " · undone"
    lines = [
        Content.assemble(
            ("▌ ", "$primary"),
            (formats.one_line(turn.prompt, 80), "bold" if turn.state == "current" else _MUTED),
            (f"  {age}{gone}", _MUTED),
        )
    ]
    if not turn.calls:
        lines.append(Content.styled("    no file changes", _MUTED))
    for call in turn.calls:
        lines += _draw_call(call)
    return lines


def _draw_call(call: TimelineCall) -> list[Content]:
    command = formats.one_line(call.command, 90) if call.command else ""
    name = {"job": "background job", "unknown": "changed"}.get(call.tool, call.tool)
    files = [_draw_file(file) for file in call.files]
    if call.more:
        files.append(Content.styled(f"      and {call.more} more files", _MUTED))
    return [Content.assemble(f"    {formats.one_line(name, 40)}", (f"  {command}" if command else "", _MUTED)), *files]


def _draw_file(file: TimelineFile) -> Content:
    doubt = f"  {describe_obstacle(file.unsure)}" if file.unsure else ""
    gone = "  undone" if file.undone else ""
    return Content.assemble(
        (f"      {'?' if file.unsure else '·'} {file.status:<8}  {visible(file.path)}", _MUTED if file.undone else ""),
        (f"  {format_lines(file.added, file.removed)}{doubt}{gone}", _MUTED),
    )
