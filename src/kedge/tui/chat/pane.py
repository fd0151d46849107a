"""A widget that shows blocks line by line. The first visible line stays in place, whatever arrives around it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

from rich.segment import Segment
from rich.style import Style
from textual.geometry import Size
from textual.message import Message
from textual.reactive import Reactive
from textual.scroll_view import ScrollView
from textual.selection import Selection
from textual.strip import Strip
from textual.widget import Widget

from kedge.tui.chat.calls import ViewOptions
from kedge.tui.chat.layout import Anchor, BlockLayout
from kedge.tui.chat.lines import PLAIN, blank
from kedge.tui.chat.palette import Palette, get_palette
from kedge.tui.state.blocks import Block, PromptBlock

_OVERSCAN = 10  # lines drawn beyond a page above and below, so that heights are known when scrolling by a page
_MAX_CACHED = 500  # lines


class Pane(ScrollView):
    """Follows the end while the end is visible. `_view_of` returns the options of a block."""

    class NewLines(Message):
        """The number of new lines below has changed."""

    def __init__(self) -> None:
        super().__init__()
        self.styles.overflow_x = "hidden"
        self.styles.overflow_y = "scroll"  # a scroll bar that comes and goes would have every line wrapped again
        self.styles.scrollbar_size_vertical = 1
        self._block_layout = BlockLayout()
        self._blocks: Sequence[Block] = ()
        self._palette: Palette
        self._selected: str | None = None
        self._follows = True
        self._is_settling = False
        self._anchor: Anchor | None = None  # the first visible line
        # The last block and its height when the user scrolled away from the end.
        self._seen: tuple[str, int] | None = None
        self._drawn: dict[int, tuple[Strip, tuple[int, bool], Strip]] = {}  # cached lines of the screen
        self._told_new_lines = 0
        self._origin = 0  # offset of line numbers in selections, which must not change when lines are added above

    def show(self, blocks: Sequence[Block]) -> None:
        self._blocks = blocks
        if not self._block_layout.width:
            return  # drawn once the size is known
        first = self._block_layout.show(blocks, self._get_view)
        if first is None:
            return
        if self._selected is not None and self._block_layout.get_index(self._selected) is None:
            self._selected = None
        self._settle(changed_from=first)

    def clear(self) -> None:
        self._block_layout.clear()
        self._drawn.clear()
        self._blocks = ()
        self._origin = 0
        self._selected = self._seen = self._anchor = None
        self._follows = True
        self._settle()

    @property
    def is_following(self) -> bool:
        """Whether the end stays visible as lines are added."""
        return self._follows

    @property
    def new_lines(self) -> int:
        """The number of lines that were added below since the user scrolled away from the end."""
        if self._follows or self._seen is None:
            return 0
        at = self._block_layout.get_index(self._seen[0])
        if at is None:
            return 0
        return max(0, self._block_layout.height - self._block_layout.tops[at] - self._seen[1])

    def _get_view(self, block: Block) -> ViewOptions:
        raise NotImplementedError

    def _refold(self, keys: list[str]) -> None:
        """Fold or unfold blocks. The first visible line stays, so that an unfolded block is read from its beginning."""
        self._block_layout.refold(keys, self._get_view)
        self._follows = False
        self._settle()
        self._remember(is_seen=True)

    # position

    def _settle(self, *, is_resized: bool = False, changed_from: int | None = None) -> None:
        """Draw the lines that will be visible, and scroll the first visible line back to its place."""
        layout, height = self._block_layout, max(1, self.size.height)
        if not layout.width:
            return
        before = self.scroll_offset.y
        page = height + _OVERSCAN
        position = None if self._follows or self._anchor is None else layout.find(self._anchor, is_resized)
        if position is None:
            layout.draw_end(height + page)
            target = max(0, layout.height - height)
        else:
            layout.draw_around(position, page, height + page)
            target = layout.get_y(position)
            self._origin += target - before
        self._is_settling = True
        try:
            self._set_height(layout.height)
            self.scroll_to(y=target, animate=False, force=True, immediate=True)
        finally:
            self._is_settling = False
        if self.scroll_offset.y >= self.max_scroll_y:
            self._follows = True
        self._remember()
        if changed_from is None or self.scroll_offset.y != before:
            self.refresh()
        else:
            top = layout.tops[changed_from] - before
            self.refresh(self.size.region.shrink((max(0, min(top, height - 1)), 0, 0, 0)))

    def _remember(self, *, is_seen: bool = False) -> None:
        if (is_seen or self._follows) and self._block_layout.entries:
            last = self._block_layout.entries[-1]
            self._seen = (last.block.key, last.height)
        self._anchor = self._block_layout.anchor(self.scroll_offset.y)
        if self.new_lines != self._told_new_lines:
            self._told_new_lines = self.new_lines
            self.post_message(self.NewLines())

    def _set_height(self, height: int) -> None:
        """Set `virtual_size` without the layout of the whole screen that it would cause."""
        size = Size(self.size.width, height)
        if size != self.virtual_size:
            self.set_reactive(cast(Reactive[Size], Widget.virtual_size), size)
            if self.show_vertical_scrollbar:
                self.vertical_scrollbar.window_virtual_size = height

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        super().watch_scroll_y(old_value, new_value)
        if self._is_settling or not self._block_layout.width:
            return
        self._follows = round(new_value) >= self.max_scroll_y
        self._anchor = self._block_layout.anchor(round(new_value))
        self._settle()

    def on_resize(self) -> None:
        self._fit()

    def notify_style_update(self) -> None:
        super().notify_style_update()
        if self.is_mounted and self._block_layout.width and get_palette(self) is not self._palette:
            self._fit()

    def _fit(self) -> None:
        width = self.scrollable_content_region.width - GUTTER
        if width <= 0 or not self.size.height:
            return
        is_first = not self._block_layout.width
        self._palette = get_palette(self)
        self._block_layout.resize(width, self._palette)
        if is_first:
            self._block_layout.show(self._blocks, self._get_view)
        self._settle(is_resized=True)

    # drawing

    def render_line(self, y: int) -> Strip:
        width = self.scrollable_content_region.width
        at = self.scroll_offset.y + y
        found = self._block_layout.line(at)
        if found is None:
            return blank(width).apply_style(self._palette.ground) if self._block_layout.width else blank(width)
        entry, own, is_gap = found
        is_selected = self.has_focus and entry.block.key == self._selected
        selection = self.text_selection
        line = at - self._origin
        if selection is None:
            known = self._drawn.get(line)
            if known is not None and known[0] is own and known[1] == (width, is_selected):
                return known[2]
        strip = own if is_gap else Strip([*draw_gutter(entry.block, self._palette, is_selected=is_selected), *own])
        strip = strip.adjust_cell_length(width, PLAIN).apply_style(self._palette.ground)
        if selection is not None:
            style = self.screen.get_component_rich_style("screen--selection")
            strip = mark_selection(strip, selection, line, style)
        strip = strip.apply_offsets(0, line)
        if selection is None:
            if len(self._drawn) > _MAX_CACHED:
                self._drawn.clear()
            self._drawn[line] = (own, (width, is_selected), strip)
        return strip

    # selection

    @property
    def allow_select(self) -> bool:
        return True

    def get_selection(self, selection: Selection) -> tuple[str, str] | None:
        origin, layout = self._origin, self._block_layout

        def text(y: int) -> str:
            found = layout.line(y + origin)
            return " " * GUTTER + found.strip.text if found else ""

        return get_selected_text(selection, range(-origin, layout.height - origin), text), "\n"


GUTTER = 2  # columns at the left, for the bar of prompts and the mark of the selected block

_EMPTY = [Segment(" " * GUTTER, PLAIN)]


def draw_gutter(block: Block, palette: Palette, *, is_selected: bool) -> list[Segment]:
    if isinstance(block, PromptBlock):
        ink = palette.accent if is_selected else palette.bar
        return [Segment("▌", ink + Style(bgcolor=palette.panel.bgcolor)), Segment(" ", palette.panel)]
    return [Segment("▎ ", palette.accent)] if is_selected else _EMPTY


def mark_selection(strip: Strip, selection: Selection, y: int, style: Style) -> Strip:
    """Return the strip of line `y` with its selected part in the style of selections."""
    span = selection.get_span(y)
    if span is None:
        return strip
    start, end = span
    if end < 0:
        end = len(strip.text.rstrip())
    if end <= start:
        return strip
    segments: list[Segment] = []
    at = 0
    for text, own, _ in strip:
        first, last = max(0, start - at), max(0, min(len(text), end - at))
        if first < last:
            cuts = [(text[:first], own), (text[first:last], (own or Style.null()) + style), (text[last:], own)]
            segments += [Segment(cut, ink) for cut, ink in cuts if cut]
        else:
            segments.append(Segment(text, own))
        at += len(text)
    return Strip(segments, strip.cell_length)


def get_selected_text(selection: Selection, lines_there: range, line: Callable[[int], str]) -> str:
    """Return the selected text as it is drawn; `line` returns the text of a line."""
    first = lines_there.start if selection.start is None else max(lines_there.start, selection.start.y)
    stop = lines_there.stop if selection.end is None else min(lines_there.stop, selection.end.y + 1)
    lines: list[str] = []
    for y in range(first, stop):
        start, end = selection.get_span(y) or (0, -1)
        text = line(y)
        lines.append(text[start:].rstrip() if end < 0 else text[start:end].rstrip())
    return "\n".join(lines)
