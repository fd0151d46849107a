"""What a reader folded and unfolded, and how diffs are wanted."""

from __future__ import annotations

from kedge.tui.chat.calls import Look
from kedge.tui.chat.diffs import MIN_SPLIT
from kedge.tui.story.blocks import Block


class Folding:
    """Blocks are folded until somebody wants to see more, of one or of all of a kind."""

    def __init__(self) -> None:
        self._unfolded: dict[str, bool] = {}
        self._unfolded_kinds: set[type[Block]] = set()
        self._is_split: bool | None = None

    def look(self, block: Block) -> Look:
        unfolded = self._unfolded.get(block.key, type(block) in self._unfolded_kinds)
        return Look(is_unfolded=unfolded, is_split=self._is_split)

    def toggle(self, block: Block) -> None:
        self._unfolded[block.key] = not self.look(block).is_unfolded

    def toggle_kind(self, kind: type[Block], keys: list[str]) -> None:
        """Also of those that come later. `keys` are those that are there."""
        self._unfolded_kinds ^= {kind}
        for key in keys:
            self._unfolded.pop(key, None)

    def toggle_split(self, width: int) -> None:
        self._is_split = not (width >= MIN_SPLIT if self._is_split is None else self._is_split)

    def forget(self) -> None:
        self._unfolded.clear()
