"""The chat as a widget: a pane of blocks with hands. Keys and clicks select, fold, copy and open."""

from __future__ import annotations

from typing import ClassVar

from textual import events
from textual.binding import Binding, BindingType
from textual.message import Message

from kedge.tui.chat.calls import ViewOptions
from kedge.tui.chat.diffs import MIN_SPLIT
from kedge.tui.chat.layout import Flow
from kedge.tui.chat.pane import Pane, hint_of
from kedge.tui.chat.pieces import can_open, copy_text, is_foldable
from kedge.tui.state.blocks import Block


class Folding:
    """Blocks are folded until somebody wants to see more, of one or of all of a kind."""

    def __init__(self) -> None:
        self._unfolded: dict[str, bool] = {}
        self._unfolded_kinds: set[type[Block]] = set()
        self._is_split: bool | None = None

    def view(self, block: Block) -> ViewOptions:
        unfolded = self._unfolded.get(block.key, type(block) in self._unfolded_kinds)
        return ViewOptions(is_unfolded=unfolded, is_split=self._is_split)

    def toggle(self, block: Block) -> None:
        self._unfolded[block.key] = not self.view(block).is_unfolded

    def toggle_kind(self, kind: type[Block], keys: list[str]) -> None:
        """Also of those that come later. `keys` are those that are there."""
        self._unfolded_kinds ^= {kind}
        for key in keys:
            self._unfolded.pop(key, None)

    def toggle_split(self, width: int) -> None:
        self._is_split = not (width >= MIN_SPLIT if self._is_split is None else self._is_split)

    def forget(self) -> None:
        self._unfolded.clear()


class Transcript(Pane, can_focus=True):
    """`show` it the blocks as often as one likes: it draws what changed and is in sight."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "previous", "Previous block", show=False),
        Binding("down,j", "next", "Next block", show=False),
        Binding("enter", "open", "Open or unfold", show=False),
        Binding("space", "fold", "Fold or unfold", show=False),
        Binding("c,y", "copy", "Copy the block", show=False),
        Binding("s", "split", "Diffs side by side or not", show=False),
    ]

    class Copied(Message):
        """A person wants this text in the clipboard."""

        def __init__(self, text: str) -> None:
            super().__init__()
            self.text = text

    class Opened(Message):
        """A person wants to see all of a call: its diff, or the session of its sub-agent."""

        def __init__(self, block: Block) -> None:
            super().__init__()
            self.block = block

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self._folding = Folding()

    def clear(self) -> None:
        self._folding.forget()
        super().clear()

    @property
    def selected(self) -> Block | None:
        at = None if self._selected is None else self._flow.index_of(self._selected)
        return None if at is None else self._flow.entries[at].block

    # folding

    def toggle(self, key: str) -> None:
        at = self._flow.index_of(key)
        if at is not None and is_foldable(block := self._flow.entries[at].block):
            self._folding.toggle(block)
            self._refold([key])

    def toggle_all(self, kind: type[Block]) -> None:
        """Unfold all of a kind, also those that come later, or fold them again."""
        keys = [entry.block.key for entry in self._flow.entries if isinstance(entry.block, kind)]
        self._folding.toggle_kind(kind, keys)
        self._refold(keys)

    def toggle_split(self) -> None:
        """Diffs side by side, or in one column."""
        self._folding.toggle_split(self.size.width)
        self._refold([entry.block.key for entry in self._flow.entries if can_open(entry.block)])

    def _view_of(self, block: Block) -> ViewOptions:
        return self._folding.view(block)

    # keys and the mouse

    def on_focus(self) -> None:
        self.refresh()

    def on_blur(self) -> None:
        self.refresh()

    def on_click(self, event: events.Click) -> None:
        event.prevent_default()  # which would select all that was ever said
        offset = event.get_content_offset(self)
        if self.text_selection is not None or offset is None:
            return
        hint = hint_of(new) if (new := self.new_lines) and offset.y == self.size.height - 1 else ""
        if hint and offset.x >= self.scrollable_content_region.width - len(hint):
            self.action_scroll_end()
            return
        y = self.scroll_offset.y + offset.y
        place = self._flow.place(y)
        found = self._flow.line(y)
        if place is None or found is None or place.piece < 0:
            return
        block = found.entry.block
        self._selected = block.key
        if place[1:] == (0, 0) or found.strip.text.lstrip().startswith("… "):
            self.toggle(block.key)  # not by a click into what it says, which may be meant for its text
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
            self.post_message(self.Copied(copy_text(block)))

    def action_split(self) -> None:
        self.toggle_split()

    def action_scroll_home(self) -> None:
        self.scroll_to(y=0, animate=False)

    def action_scroll_end(self) -> None:
        self.scroll_to(y=self.max_scroll_y, animate=False)

    def action_page_up(self) -> None:
        self.scroll_to(y=self.scroll_offset.y - self.size.height, animate=False)

    def action_page_down(self) -> None:
        self.scroll_to(y=self.scroll_offset.y + self.size.height, animate=False)

    def _select(self, step: int) -> None:
        selected, y = stepped(self._flow, self._selected, step, self.scroll_offset.y, self.size.height)
        self._selected = selected
        if y is not None:
            self.scroll_to(y=y, animate=False)
        self.refresh()


def stepped(flow: Flow, selected: str | None, step: int, top: int, height: int) -> tuple[str | None, int | None]:
    """The block that is selected after a step, and the line to scroll to, if any.

    `top` and `height` are what is in sight. A block that goes on out of sight is read on before it is left.
    """
    if not flow.entries:
        return None, None
    at = None if selected is None else flow.index_of(selected)
    bottom = top + height
    if at is None:
        place = flow.place(bottom - 1 if step < 0 else top)
        at = place.entry if place else len(flow.entries) - 1
    elif (step > 0 and flow.tops[at + 1] > bottom) or (step < 0 and flow.tops[at] + 1 < top):
        return selected, top + step * max(1, height // 2)
    else:
        at = max(0, min(len(flow.entries) - 1, at + step))
    first, end = flow.tops[at], flow.tops[at + 1]
    y = None
    if first < top:
        y = max(first, end - height)
    elif end > bottom:
        y = min(first, end - height)
    return flow.entries[at].block.key, y
