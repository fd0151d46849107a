"""Turns each kind of block into pieces to draw, and into text to copy."""

from __future__ import annotations

from collections.abc import Callable

from rich.segment import Segment
from rich.style import Style

from kedge.protocol.text_safety import visible, visible_line
from kedge.tui import formats
from kedge.tui.chat import markdown
from kedge.tui.chat.calls import (
    MAX_LINES,
    ViewOptions,
    count_lines,
    draw_call,
    draw_last_lines,
    draw_more,
    get_call_text,
    get_diff,
)
from kedge.tui.chat.chunks import Chunk, Splitter
from kedge.tui.chat.lines import MAX_PROSE, Line, indent, make_strip, truncate, width_of, wrap
from kedge.tui.chat.palette import Palette
from kedge.tui.state.blocks import (
    Block,
    CallBlock,
    EndBlock,
    NoteBlock,
    PromptBlock,
    ReasoningBlock,
    ShellBlock,
    TextBlock,
)

FOLDED_PROMPT = 12  # lines of a long prompt
FOLDED_OUTPUT = 200  # lines of a command that the user ran: they asked to see them

_BOLD = Style(bold=True)
_NOTES = {
    "info": ("·", "muted"),
    "warning": ("▲", "warning"),
    "error": ("✗", "error"),
    "cancelled": ("■", "muted"),
    "summary": ("≡", "secondary"),
}

Draw = Callable[[int, Palette], list[Line]]


class Piece:
    """Lines that are drawn together. A piece never changes: a block that looks different has another piece."""

    __slots__ = ("_chars", "_newlines", "draw")

    def __init__(self, draw: Draw, text: str = "", lines: int = 0) -> None:
        self.draw = draw
        self._chars = len(text)
        self._newlines = text.count("\n") + 1 if text else lines

    def estimate_height(self, width: int) -> int:
        """Return its approximate height without drawing it."""
        return max(1, self._newlines, self._chars // max(1, width - 4) + 1)


INTERRUPTED = Piece(  # below the text of an attempt that failed
    lambda width, palette: wrap([Segment("■ Interrupted: this is not the answer", palette.muted)], width), lines=1
)


def make_pieces(block: Block, view: ViewOptions) -> list[Piece]:
    """Return the pieces of a block. (A `TextBlock` that still grows has its own `MarkdownPieces`.)"""
    if isinstance(block, TextBlock):
        return MarkdownPieces().grow(block.text)
    if isinstance(block, NoteBlock) and view.is_unfolded and block.details:
        return [_make_piece(block, view), *MarkdownPieces(gap=True).grow(block.details)]
    if isinstance(block, ReasoningBlock) and view.is_unfolded and not block.is_redacted:
        return [_make_piece(block, view), *MarkdownPieces(muted=True).grow(block.text)]
    return [_make_piece(block, view)]


def is_foldable(block: Block) -> bool:
    match block:
        case ReasoningBlock():
            return not block.is_redacted
        case CallBlock() | ShellBlock():
            return True
        case NoteBlock():
            return bool(block.details)
        case PromptBlock():
            return block.text.count("\n") >= FOLDED_PROMPT
        case _:
            return False


def get_copy_text(block: Block) -> str:
    """Return the text to copy: as it was written, not as it is drawn."""
    match block:
        case PromptBlock() | TextBlock() | ReasoningBlock():
            return block.text
        case CallBlock():
            return get_call_text(block)
        case ShellBlock():
            return f"{block.command}\n{block.output}".strip()
        case NoteBlock():
            return "\n".join(filter(None, [block.text, block.details]))
        case EndBlock():
            return _describe_end(block)
        case _:
            return ""


def can_open(block: Block) -> bool:
    return isinstance(block, CallBlock) and bool(get_diff(block) or block.child_session_id)


class MarkdownPieces:
    """The pieces of Markdown that grows; those of finished chunks are kept."""

    def __init__(self, *, muted: bool = False, gap: bool = False) -> None:
        self._splitter = Splitter()
        self.is_muted = muted
        self._gap = gap
        self._done: list[Piece] = []

    def grow(self, text: str, *, is_open: bool = False) -> list[Piece]:
        changed = self._splitter.grow(text)
        del self._done[changed:]
        for chunk in self._splitter.chunks[changed:]:
            self._done.append(self._piece(chunk))
        tail = self._splitter.tail
        if tail is None:
            return list(self._done)
        return [*self._done, self._piece(tail._replace(is_growing=tail.is_growing and is_open))]

    def _piece(self, chunk: Chunk) -> Piece:
        if self._gap and not self._done:
            chunk = chunk._replace(gap=True)
        muted = self.is_muted

        def draw(width: int, palette: Palette) -> list[Line]:
            lines = markdown.draw_chunk(chunk, width, palette)
            if not muted:
                return lines
            return [
                [Segment(text, (style or palette.text) + palette.muted) for text, style, _ in line] for line in lines
            ]

        return Piece(draw, chunk.text + "\n" * chunk.gap)


def _make_piece(block: Block, view: ViewOptions) -> Piece:
    match block:
        case PromptBlock():
            return Piece(lambda width, palette: _draw_prompt(block, view, width, palette), block.text)
        case ReasoningBlock():
            return Piece(lambda width, palette: _draw_thoughts(block, view, width, palette), lines=1)
        case CallBlock():
            lines = 1 if not view.is_unfolded else min(MAX_LINES, 1 + count_lines(block.output))
            return Piece(lambda width, palette: draw_call(block, view, width, palette, _draw_child), lines=lines)
        case ShellBlock():
            lines = min(FOLDED_OUTPUT, count_lines(block.output)) + 1
            return Piece(lambda width, palette: _draw_shell(block, view, width, palette), lines=lines)
        case NoteBlock():
            return Piece(lambda width, palette: _draw_note(block, width, palette), block.text)
        case EndBlock():
            return Piece(lambda width, palette: wrap([Segment(_describe_end(block), palette.muted)], width), lines=1)
        case _:
            return Piece(lambda width, palette: [], lines=1)


def _draw_child(block: Block, width: int, palette: Palette) -> list[Line]:
    return [line for piece in make_pieces(block, ViewOptions()) for line in piece.draw(width, palette)]


def _draw_prompt(block: PromptBlock, view: ViewOptions, width: int, palette: Palette) -> list[Line]:
    text = block.text.replace("\r\n", "\n").strip("\n")
    total = count_lines(text)
    is_cut = total > FOLDED_PROMPT + 1 and not view.is_unfolded
    if is_cut:
        text = "\n".join(text.split("\n", FOLDED_PROMPT)[:FOLDED_PROMPT])
    mark = "! " if block.is_shell else ""
    lines = wrap([Segment(mark + visible(text), palette.text)], min(width - 1, MAX_PROSE)) if text else []
    lines += [draw_more(total - FOLDED_PROMPT, palette)] if is_cut else []
    lines += _draw_attachments(block.attachments, width - 1, palette)
    on_panel = [[Segment(text, palette.panel + style if style else None) for text, style, _ in line] for line in lines]
    return [list(make_strip(line, width, palette.panel)) for line in on_panel]


def _draw_attachments(names: tuple[str, ...], width: int, palette: Palette) -> list[Line]:
    lines: list[Line] = []
    for name in names:
        chip = truncate([Segment(f" ▣ {visible_line(name)} ", palette.chip)], width)
        if lines and width_of(lines[-1]) + 1 + width_of(chip) <= width:
            lines[-1] += [Segment(" ", palette.text), *chip]
        else:
            lines.append(chip)
    return lines


def _draw_thoughts(block: ReasoningBlock, view: ViewOptions, width: int, palette: Palette) -> list[Line]:
    style = palette.muted + Style(italic=True)
    if block.is_redacted:
        return [[Segment("∴ Thought (hidden by the provider)", style)]]
    head = "∴ Thinking…" if block.is_open else "∴ Thought"
    if view.is_unfolded:
        return [[Segment(head, style)]]
    text = block.text.strip()
    line = text[text.rfind("\n") + 1 :][-2000:] if block.is_open else text[:2000].partition("\n")[0]
    return [
        truncate([Segment(f"{head}  ", style), Segment(visible_line(line).replace("**", ""), palette.muted)], width)
    ]


def _draw_shell(block: ShellBlock, view: ViewOptions, width: int, palette: Palette) -> list[Line]:
    mark = Segment("! ", palette.secondary + _BOLD)
    line = [Segment(visible(block.command), palette.text + _BOLD)]
    if block.exit_code:
        line.append(Segment(f"  exit {block.exit_code}", palette.error))
    elif block.is_open:
        line.append(Segment("  running", palette.muted))
    head = indent(wrap(line, width - 2), [mark], [Segment("  ")])
    limit = MAX_LINES if view.is_unfolded else FOLDED_OUTPUT
    return head + indent(draw_last_lines(block.output, limit, width - 2, palette.muted, palette), [Segment("  ")])


def _draw_note(block: NoteBlock, width: int, palette: Palette) -> list[Line]:
    mark, ink = _NOTES[block.kind]
    style: Style = getattr(palette, ink)
    lines = wrap([Segment(visible(block.text), style)], min(width - 2, MAX_PROSE)) or [[]]
    return indent(lines, [Segment(f"{mark} ", style)], [Segment("  ")])


def _describe_end(block: EndBlock) -> str:
    parts = [
        visible_line(block.model) if block.model else "",
        formats.format_duration(block.took_s) if block.took_s is not None else "",
        formats.describe_usage(block.usage),
        formats.format_cost(block.usage),
        f"stopped: {block.reason.replace('_', ' ')}" if block.reason not in (None, "end_turn", "tool_use") else "",
    ]
    return " · ".join(part for part in parts if part)
