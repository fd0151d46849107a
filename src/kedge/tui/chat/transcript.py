"""The chat widget: keys and clicks select, fold, copy and open blocks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from textual import events
from textual.binding import Binding, BindingType
from textual.message import Message

from kedge.tui.chat.calls import ViewOptions
from kedge.tui.chat.diffs import MIN_SPLIT
from kedge.tui.chat.layout import BlockLayout
from kedge.tui.chat.pane import Pane
from kedge.tui.chat.pieces import can_open, get_copy_text, is_foldable
from kedge.tui.state.blocks import Block


class Transcript(Pane, can_focus=True):
    """Call `show` with the blocks as often as needed: only changed and visible ones are drawn."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "previous", "Previous block", show=False),
        Binding("down,j", "next", "Next block", show=False),
        Binding("enter", "open", "Open or unfold", show=False),
        Binding("space", "fold", "Fold or unfold", show=False),
        Binding("c,y", "copy", "Copy the block", show=False),
        Binding("s", "split", "Diffs side by side or not", show=False),
    ]

    @dataclass
    class Copied(Message):
        text: str

    @dataclass
    class Opened(Message):
        """The user opened a call: its diff, or the session of its sub-agent."""

        block: Block

    def __init__(self) -> None:
        super().__init__()
        self._unfolded: dict[str, bool] = {}  # by key; the other blocks are unfolded if their kind is
        self._unfolded_kinds: set[type[Block]] = set()
        self._is_split: bool | None = None

    def clear(self) -> None:
        self._unfolded.clear()
        super().clear()

    @property
    def selected(self) -> Block | None:
        at = None if self._selected is None else self._block_layout.get_index(self._selected)
        return None if at is None else self._block_layout.entries[at].block

    # folding

    def toggle(self, key: str) -> None:
        at = self._block_layout.get_index(key)
        if at is not None and is_foldable(block := self._block_layout.entries[at].block):
            self._unfolded[key] = not self._get_view(block).is_unfolded
            self._refold([key])

    def toggle_all(self, kind: type[Block]) -> None:
        """Unfold all blocks of a kind, also later ones, or fold them again."""
        keys = [entry.block.key for entry in self._block_layout.entries if isinstance(entry.block, kind)]
        self._unfolded_kinds ^= {kind}
        for key in keys:
            self._unfolded.pop(key, None)
        self._refold(keys)

    def action_split(self) -> None:
        """Show diffs side by side, or in one column."""
        self._is_split = not (self.size.width >= MIN_SPLIT if self._is_split is None else self._is_split)
        self._refold([entry.block.key for entry in self._block_layout.entries if can_open(entry.block)])

    def _get_view(self, block: Block) -> ViewOptions:
        is_unfolded = self._unfolded.get(block.key, type(block) in self._unfolded_kinds)
        return ViewOptions(is_unfolded=is_unfolded, is_split=self._is_split)

    # keys and the mouse

    def on_focus(self) -> None:
        self.refresh()

    def on_blur(self) -> None:
        self.refresh()

    def on_click(self, event: events.Click) -> None:
        event.prevent_default()  # it would select the whole conversation
        offset = event.get_content_offset(self)
        if self.text_selection is not None or offset is None:
            return
        y = self.scroll_offset.y + offset.y
        position = self._block_layout.position_at(y)
        found = self._block_layout.line(y)
        if position is None or found is None or position.piece < 0:
            return
        block = found.entry.block
        self._selected = block.key
        if position[1:] == (0, 0) or found.strip.text.lstrip().startswith("… "):
            self.toggle(block.key)  # not by a click on its text, which may be the start of a selection
        if event.chain == 2 and can_open(block):
            self.post_message(self.Opened(block))
        self.refresh()

    def action_previous(self) -> None:
        self._select(-1)

    def action_next(self) -> None:
        self._select(+1)

    def action_open(self) -> None:
        block = self.selected
        if block is not None and can_open(block):
            self.post_message(self.Opened(block))
        else:
            self.action_fold()

    def action_fold(self) -> None:
        if self._selected is not None:
            self.toggle(self._selected)

    def action_copy(self) -> None:
        if (block := self.selected) is not None:
            self.post_message(self.Copied(get_copy_text(block)))

    def action_scroll_home(self) -> None:
        self.scroll_to(y=0, animate=False)

    def action_scroll_end(self) -> None:
        self.scroll_to(y=self.max_scroll_y, animate=False)

    def action_page_up(self) -> None:
        self.scroll_to(y=self.scroll_offset.y - self.size.height, animate=False)

    def action_page_down(self) -> None:
        self.scroll_to(y=self.scroll_offset.y + self.size.height, animate=False)

    def _select(self, step: int) -> None:
        selected, y = find_step(self._block_layout, self._selected, step, self.scroll_offset.y, self.size.height)
        self._selected = selected
        if y is not None:
            self.scroll_to(y=y, animate=False)
        self.refresh()


def find_step(
    layout: BlockLayout, selected: str | None, step: int, top: int, height: int
) -> tuple[str | None, int | None]:
    """Return the block that a step selects, and the line to scroll to, if any.

    `top` and `height` describe the visible lines. A step out of a block that is partly hidden scrolls through it first.
    """
    if not layout.entries:
        return None, None
    at = None if selected is None else layout.get_index(selected)
    bottom = top + height
    if at is None:
        position = layout.position_at(bottom - 1 if step < 0 else top)
        at = position.entry if position else len(layout.entries) - 1
    elif (step > 0 and layout.tops[at + 1] > bottom) or (step < 0 and layout.tops[at] + 1 < top):
        return selected, top + step * max(1, height // 2)
    else:
        at = max(0, min(len(layout.entries) - 1, at + step))
    first, end = layout.tops[at], layout.tops[at + 1]
    y = None
    if first < top:
        y = max(first, end - height)
    elif end > bottom:
        y = min(first, end - height)
    return layout.entries[at].block.key, y
