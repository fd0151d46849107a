"""A block in the transcript: its pieces and how high each of them is, guessed until it was drawn."""

from __future__ import annotations

from itertools import accumulate

from kedge.tui.chat.calls import Look
from kedge.tui.chat.drawing import Piece, WordsPieces, pieces_of
from kedge.tui.story.blocks import Block, Call, Note, Thoughts, Words


class Entry:
    """`gap` is whether an empty line is above it. A height of a piece that was never drawn is a guess."""

    __slots__ = ("_offsets", "_words", "block", "gap", "heights", "is_drawn", "look", "pieces")

    def __init__(self, block: Block, look: Look, gap: int, width: int) -> None:
        self.block = block
        self.look = look
        self.gap = gap
        self.pieces: list[Piece] = []
        self.heights: list[int] = []
        self.is_drawn: list[bool] = []
        self._words: WordsPieces | None = None
        self._offsets: list[int] | None = None
        self.take(block, look, width)

    def take(self, block: Block, look: Look, width: int) -> None:
        """The block as it is now. Pieces that are the same keep their height."""
        self.block, self.look = block, look
        pieces = self._pieces(block, look)
        same = _same(self.pieces, pieces)
        self.pieces = pieces
        self.heights[same:] = [piece.guess(width) for piece in pieces[same:]]
        self.is_drawn[same:] = [False] * (len(pieces) - same)
        self._offsets = None

    def forget_heights(self, width: int) -> None:
        self.heights = [piece.guess(width) for piece in self.pieces]
        self.is_drawn = [False] * len(self.pieces)
        self._offsets = None

    def set_height(self, piece: int, height: int) -> bool:
        """Whether it was another."""
        self.is_drawn[piece] = True
        if self.heights[piece] == height:
            return False
        self.heights[piece] = height
        self._offsets = None
        return True

    @property
    def offsets(self) -> list[int]:
        """The first line of each piece, and the end."""
        if self._offsets is None:
            self._offsets = list(accumulate(self.heights, initial=self.gap))
        return self._offsets

    @property
    def height(self) -> int:
        return self.offsets[-1]

    def _pieces(self, block: Block, look: Look) -> list[Piece]:
        if not isinstance(block, Words):
            return pieces_of(block, look)
        if self._words is None or self._words.is_muted != block.is_interrupted:
            self._words = WordsPieces(muted=block.is_interrupted)
        return self._words.grow(block.text, is_open=block.is_open)


def gap_between(before: Block | None, block: Block) -> int:
    """Calls stand together: a column of them reads as a list."""
    if before is None:
        return 0
    together = Call | Thoughts
    if isinstance(before, together) and isinstance(block, together):
        return 0
    return 0 if isinstance(before, Note) and isinstance(block, Note) else 1


def _same(before: list[Piece], now: list[Piece]) -> int:
    """How many are the same at the beginning. Only the end of a list that grows is different."""
    same = min(len(before), len(now))
    if same and before[same - 1] is now[same - 1]:
        return same
    while same and before[same - 1] is not now[same - 1]:
        same -= 1
    return same
