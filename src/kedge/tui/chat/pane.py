"""A pane that shows blocks line by line. What the reader looks at stays where it is, whatever arrives around it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

from rich.segment import Segment
from rich.style import Style
from textual.geometry import Size
from textual.reactive import Reactive
from textual.scroll_view import ScrollView
from textual.selection import Selection
from textual.strip import Strip
from textual.widget import Widget

from kedge.tui.chat.calls import ViewOptions
from kedge.tui.chat.layout import Anchor, Flow
from kedge.tui.chat.lines import PLAIN, blank, strip_of
from kedge.tui.chat.palette import Palette, palette_of
from kedge.tui.state.blocks import Block, PromptBlock

_OVERSCAN = 10  # lines drawn beyond a page above and below, so that scrolling by a page meets no guess
_DRAWN = 500  # lines: they are seldom drawn twice but when one scrolls


class Pane(ScrollView):
    """It follows the end while the end is in sight; `_look` says how a block is wanted."""

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self.styles.overflow_x = "hidden"
        self.styles.overflow_y = "scroll"  # a bar that comes and goes would break every line anew
        self.styles.scrollbar_size_vertical = 1
        self._flow = Flow()
        self._blocks: Sequence[Block] = ()
        self._palette: Palette
        self._selected: str | None = None
        self._follows = True
        self._is_settling = False
        self._anchor: Anchor | None = None  # of the first line in sight
        self._seen: tuple[str, int] | None = None  # the last block and its height when the reader left the end
        self._drawn: dict[int, tuple[Strip, tuple[int, bool], Strip]] = {}  # lines as they were on the screen last
        self._origin = 0  # how far what is in sight has moved since selections began to count lines

    def show(self, blocks: Sequence[Block]) -> None:
        self._blocks = blocks
        if not self._flow.width:
            return  # drawn when there is a size
        first = self._flow.show(blocks, self._view_of)
        if first is None:
            return
        if self._selected is not None and self._flow.index_of(self._selected) is None:
            self._selected = None
        self._settle(changed_from=first)

    def clear(self) -> None:
        self._flow.clear()
        self._drawn.clear()
        self._blocks = ()
        self._origin = 0
        self._selected = self._seen = self._anchor = None
        self._follows = True
        self._settle()

    @property
    def is_following(self) -> bool:
        """Whether the end stays in sight as more comes."""
        return self._follows

    @property
    def new_lines(self) -> int:
        """How many came below since the reader left the end."""
        if self._follows or self._seen is None:
            return 0
        at = self._flow.index_of(self._seen[0])
        if at is None:
            return 0
        return max(0, self._flow.height - self._flow.tops[at] - self._seen[1])

    def _view_of(self, block: Block) -> ViewOptions:
        raise NotImplementedError

    def _refold(self, keys: list[str]) -> None:
        """The first line in sight stays: who unfolds the last block reads it from its beginning."""
        self._flow.refold(keys, self._view_of)
        self._follows = False
        self._settle()
        self._remember(is_seen=True)

    # where one is

    def _settle(self, *, is_resized: bool = False, changed_from: int | None = None) -> None:
        """Draw what will be in sight, and put the first line in sight back in its place."""
        flow, height = self._flow, max(1, self.size.height)
        if not flow.width:
            return
        before = self.scroll_offset.y
        page = height + _OVERSCAN
        place = None if self._follows or self._anchor is None else flow.find(self._anchor, is_resized)
        if place is None:
            flow.before_end(height + page)
            target = max(0, flow.height - height)
        else:
            flow.around(place, page, height + page)
            target = flow.y_of(place)
            self._origin += target - before
        self._is_settling = True
        try:
            self._set_height(flow.height)
            self.scroll_to(y=target, animate=False, force=True, immediate=True)
        finally:
            self._is_settling = False
        if self.scroll_offset.y >= self.max_scroll_y:
            self._follows = True
        self._remember()
        if changed_from is None or self.scroll_offset.y != before:
            self.refresh()
        else:
            top = flow.tops[changed_from] - before  # the last line too: it may hold the hint
            self.refresh(self.size.region.shrink((max(0, min(top, height - 1)), 0, 0, 0)))

    def _remember(self, *, is_seen: bool = False) -> None:
        if (is_seen or self._follows) and self._flow.entries:
            last = self._flow.entries[-1]
            self._seen = (last.block.key, last.height)
        self._anchor = self._flow.anchor(self.scroll_offset.y)

    def _set_height(self, height: int) -> None:
        """Without a layout of the whole screen, which a new `virtual_size` asks for: the bar is always there."""
        size = Size(self.size.width, height)
        if size != self.virtual_size:
            self.set_reactive(cast(Reactive[Size], Widget.virtual_size), size)
            if self.show_vertical_scrollbar:
                self.vertical_scrollbar.window_virtual_size = height

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        super().watch_scroll_y(old_value, new_value)
        if self._is_settling or not self._flow.width:
            return
        self._follows = round(new_value) >= self.max_scroll_y
        self._anchor = self._flow.anchor(round(new_value))
        self._settle()

    def on_resize(self) -> None:
        self._fit()

    def notify_style_update(self) -> None:
        super().notify_style_update()
        if self.is_mounted and self._flow.width and palette_of(self) is not self._palette:
            self._fit()

    def _fit(self) -> None:
        width = self.scrollable_content_region.width - GUTTER
        if width <= 0 or not self.size.height:
            return
        is_first = not self._flow.width
        self._palette = palette_of(self)
        self._flow.resize(width, self._palette)
        if is_first:
            self._flow.show(self._blocks, self._view_of)
        self._settle(is_resized=True)

    # what is seen

    def render_line(self, y: int) -> Strip:
        width = self.scrollable_content_region.width
        at = self.scroll_offset.y + y
        found = self._flow.line(at)
        if found is None:
            return blank(width).apply_style(self._palette.ground) if self._flow.width else blank(width)
        entry, own, is_gap = found
        is_selected = self.has_focus and entry.block.key == self._selected
        selection = self.text_selection
        is_hinted = y == self.size.height - 1 and self.new_lines > 0
        line = at - self._origin
        if selection is None and not is_hinted:
            known = self._drawn.get(line)
            if known is not None and known[0] is own and known[1] == (width, is_selected):
                return known[2]
        strip = own if is_gap else Strip([*gutter(entry.block, self._palette, is_selected=is_selected), *own])
        strip = strip.adjust_cell_length(width, PLAIN).apply_style(self._palette.ground)
        if selection is not None:
            style = self.screen.get_component_rich_style("screen--selection")
            strip = marked(strip, selection, line, style)
        if is_hinted:
            strip = with_hint(strip, hint_of(self.new_lines), width, self._palette)
        strip = strip.apply_offsets(0, line)
        if selection is None and not is_hinted:
            if len(self._drawn) > _DRAWN:
                self._drawn.clear()
            self._drawn[line] = (own, (width, is_selected), strip)
        return strip

    # selecting text

    @property
    def allow_select(self) -> bool:
        return True

    def get_selection(self, selection: Selection) -> tuple[str, str] | None:
        origin, flow = self._origin, self._flow

        def text(y: int) -> str:
            found = flow.line(y + origin)
            return " " * GUTTER + found.strip.text if found else ""

        return selected_text(selection, range(-origin, flow.height - origin), text), "\n"


GUTTER = 2  # columns at the left: the bar of prompts, the mark of the block that is selected

_EMPTY = [Segment(" " * GUTTER, PLAIN)]


def gutter(block: Block, palette: Palette, *, is_selected: bool) -> list[Segment]:
    if isinstance(block, PromptBlock):
        ink = palette.accent if is_selected else palette.bar
        return [Segment("▌", ink + Style(bgcolor=palette.panel.bgcolor)), Segment(" ", palette.panel)]
    return [Segment("▎ ", palette.accent)] if is_selected else _EMPTY


def hint_of(new_lines: int) -> str:
    return f" ↓ {new_lines:,} new line{'s' if new_lines > 1 else ''} · End "


def with_hint(strip: Strip, hint: str, width: int, palette: Palette) -> Strip:
    """At the right end, over what is there."""
    if len(hint) > width:
        return strip
    return strip_of([*strip.crop(0, width - len(hint)), Segment(hint, palette.hint)], width)


def marked(strip: Strip, selection: Selection, y: int, style: Style) -> Strip:
    """The strip with what is selected of its line `y` in the style of selections."""
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


def selected_text(selection: Selection, lines_there: range, line: Callable[[int], str]) -> str:
    """The text as it is seen; `line` gives the text of a line."""
    first = lines_there.start if selection.start is None else max(lines_there.start, selection.start.y)
    stop = lines_there.stop if selection.end is None else min(lines_there.stop, selection.end.y + 1)
    lines: list[str] = []
    for y in range(first, stop):
        start, end = selection.get_span(y) or (0, -1)
        text = line(y)
        lines.append(text[start:].rstrip() if end < 0 else text[start:end].rstrip())
    return "\n".join(lines)
