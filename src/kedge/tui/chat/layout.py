"""Arranges blocks below each other and finds the block and text of each line. Only visible pieces are drawn.

Heights are estimates until a piece is drawn. `draw_around` and `draw_end` draw the pieces that will be visible, so that
the line at an `Anchor` does not move on the screen.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from itertools import accumulate
from typing import NamedTuple

from textual.strip import Strip

from kedge.tui.chat.calls import ViewOptions, has_body
from kedge.tui.chat.lines import blank, make_strips
from kedge.tui.chat.palette import Palette
from kedge.tui.chat.pieces import INTERRUPTED, MarkdownPieces, Piece, make_pieces
from kedge.tui.state.blocks import Block, CallBlock, NoteBlock, ReasoningBlock, TextBlock

MAX_CACHED_LINES = 4_000  # drawn lines in the cache: about twenty screens, a few megabytes


class Entry:
    """A block in the layout. `gap` is the number of empty lines above it; heights of undrawn pieces are estimates."""

    __slots__ = ("_markdown", "_offsets", "block", "gap", "heights", "is_drawn", "pieces", "view")

    def __init__(self, block: Block, view: ViewOptions, gap: int, width: int) -> None:
        self.block = block
        self.view = view
        self.gap = gap
        self.pieces: list[Piece] = []
        self.heights: list[int] = []
        self.is_drawn: list[bool] = []
        self._markdown: MarkdownPieces | None = None
        self._offsets: list[int] | None = None
        self.take(block, view, width)

    def take(self, block: Block, view: ViewOptions, width: int) -> None:
        """Take the block in its current form. Pieces that did not change keep their height."""
        self.block, self.view = block, view
        pieces = self._pieces(block, view)
        same = _count_equal(self.pieces, pieces)
        self.pieces = pieces
        self.heights[same:] = [piece.estimate_height(width) for piece in pieces[same:]]
        self.is_drawn[same:] = [False] * (len(pieces) - same)
        self._offsets = None

    def set_gap(self, gap: int) -> None:
        if gap != self.gap:
            self.gap = gap
            self._offsets = None

    def forget_heights(self, width: int) -> None:
        self.heights = [piece.estimate_height(width) for piece in self.pieces]
        self.is_drawn = [False] * len(self.pieces)
        self._offsets = None

    def set_height(self, piece: int, height: int) -> bool:
        """Return whether the height changed."""
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

    def _pieces(self, block: Block, view: ViewOptions) -> list[Piece]:
        if not isinstance(block, TextBlock):
            return make_pieces(block, view)
        if self._markdown is None or self._markdown.is_muted != block.is_interrupted:
            self._markdown = MarkdownPieces(muted=block.is_interrupted)
        pieces = self._markdown.grow(block.text, is_open=block.is_open)
        return [*pieces, INTERRUPTED] if block.is_interrupted else pieces


def get_gap(before: Entry | None, block: Block, view: ViewOptions) -> int:
    """Return the number of empty lines above a block: none between calls of one line, which read as a list."""
    if before is None:
        return 0
    if isinstance(before.block, NoteBlock) and isinstance(block, NoteBlock):
        return 0
    return 0 if _is_one_line(before.block, before.view) and _is_one_line(block, view) else 1


def _is_one_line(block: Block, view: ViewOptions) -> bool:
    match block:
        case CallBlock():
            return not has_body(block, view)
        case ReasoningBlock():
            return not view.is_unfolded
        case _:
            return False


def _count_equal(before: list[Piece], now: list[Piece]) -> int:
    """Return the number of equal pieces at the beginning."""
    same = min(len(before), len(now))
    while same and before[same - 1] is not now[same - 1]:
        same -= 1
    return same


class Position(NamedTuple):
    """The position of a line. `piece` is -1 on the empty line above a block."""

    entry: int
    piece: int
    line: int


class DrawnLine(NamedTuple):
    entry: Entry
    strip: Strip
    is_gap: bool = False


class Anchor(NamedTuple):
    """A line that keeps its place on the screen while others change."""

    key: str
    piece: int
    line: int
    chars_above: int  # characters of its piece above it: they find it again after wrapping at another width
    is_drawn: bool


class BlockLayout:
    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.width = 0
        self._palette: Palette | None = None
        self._blank = blank(0)
        self._index: dict[str, int] = {}
        self._successors: dict[str, str] = {}  # key of the block in the place of a removed one
        self._tops = [0]
        self._stale = 0  # first entry from which on `_tops` is out of date
        self._cache: OrderedDict[Piece, list[Strip]] = OrderedDict()
        self._cached_lines = 0

    # content

    def show(self, blocks: Sequence[Block], get_view: Callable[[Block], ViewOptions]) -> int | None:
        """Take changed blocks; return the index of the first entry that changed, or None."""
        first: int | None = None
        entries, width = self.entries, self.width
        is_same_order = len(blocks) >= len(entries)
        for at, (entry, block) in enumerate(zip(entries, blocks, strict=False)):
            known = entry.block
            if block is known or (block.key == known.key and block.revision == known.revision):
                continue
            if first is None:
                first = at
            if block.key != known.key:
                is_same_order = False
                break
            entry.take(block, get_view(block), width)
            self._update_gaps(at)
        if not is_same_order:
            first = self._rearrange(blocks, get_view, first)
        elif len(blocks) > len(entries):
            first = len(entries) if first is None else first
            self._append(blocks[len(entries) :], get_view)
        if first is not None:
            self._stale = min(self._stale, first)
        return first

    def refold(self, keys: Sequence[str], get_view: Callable[[Block], ViewOptions]) -> None:
        for key in keys:
            at = self._index[key]
            entry = self.entries[at]
            entry.take(entry.block, get_view(entry.block), self.width)
            self._update_gaps(at)
            self._stale = min(self._stale, at)

    def resize(self, width: int, palette: Palette) -> None:
        if (width, palette) == (self.width, self._palette):
            return
        self.width, self._palette, self._blank = width, palette, blank(width)
        self._cache.clear()
        self._cached_lines = 0
        for entry in self.entries:
            entry.forget_heights(width)
        self._stale = 0

    def clear(self) -> None:
        self.entries.clear()
        self._index.clear()
        self._cache.clear()
        self._cached_lines = 0
        self._stale = 0

    def _update_gaps(self, at: int) -> None:
        """Update the empty lines above and below an entry that looks different."""
        for index in range(at, min(at + 2, len(self.entries))):
            entry, before = self.entries[index], self.entries[index - 1] if index else None
            entry.set_gap(get_gap(before, entry.block, entry.view))

    def _append(self, blocks: Sequence[Block], get_view: Callable[[Block], ViewOptions]) -> None:
        for block in blocks:
            before, view = self.entries[-1] if self.entries else None, get_view(block)
            self._index[block.key] = len(self.entries)
            self.entries.append(Entry(block, view, get_gap(before, block, view), self.width))

    def _rearrange(self, blocks: Sequence[Block], get_view: Callable[[Block], ViewOptions], first: int | None) -> int:
        known = {entry.block.key: entry for entry in self.entries}
        first = min(len(blocks), len(self.entries)) if first is None else first
        before = list(known)
        self.entries, self._index = [], {}
        for block in blocks:
            entry, view = known.pop(block.key, None), get_view(block)
            gap = get_gap(self.entries[-1] if self.entries else None, block, view)
            if entry is None:
                entry = Entry(block, view, gap, self.width)
            elif block.revision != entry.block.revision or gap != entry.gap:
                entry.gap = gap
                entry.take(block, view, self.width)
            self._index[block.key] = len(self.entries)
            self.entries.append(entry)
        self._successors = _successors(before, known.keys())
        return first

    # positions

    @property
    def tops(self) -> list[int]:
        """The first line of each entry, and the end."""
        stale, tops = self._stale, self._tops
        if stale < len(self.entries) or len(tops) != len(self.entries) + 1:
            heights = [entry.height for entry in self.entries[stale:]]
            tops[stale:] = accumulate(heights, initial=tops[stale])
            self._stale = len(self.entries)
        return tops

    @property
    def height(self) -> int:
        return self.tops[-1]

    def get_index(self, key: str) -> int | None:
        return self._index.get(key)

    def position_at(self, y: int) -> Position | None:
        if not 0 <= y < self.height:
            return None
        at = bisect_right(self.tops, y) - 1
        entry = self.entries[at]
        within = y - self.tops[at]
        piece = bisect_right(entry.offsets, within) - 1
        return Position(at, piece, within - entry.offsets[piece]) if piece >= 0 else Position(at, -1, within)

    def get_y(self, position: Position) -> int:
        entry = self.entries[position.entry]
        return self.tops[position.entry] + (
            entry.offsets[position.piece] + position.line if position.piece >= 0 else position.line
        )

    def anchor(self, y: int) -> Anchor | None:
        position = self.position_at(max(0, min(y, self.height - 1)))
        if position is None:
            return None
        entry = self.entries[position.entry]
        chars_above, is_drawn = 0, False
        if position.piece >= 0 and position.line and entry.is_drawn[position.piece]:
            is_drawn = True
            chars_above = sum(map(_count_chars, self.strips(entry.pieces[position.piece])[: position.line]))
        return Anchor(entry.block.key, position.piece, position.line, chars_above, is_drawn)

    def find(self, anchor: Anchor, at_other_width: bool) -> Position | None:
        """Return the current position of an anchor; its piece is drawn."""
        at = self._index.get(anchor.key)
        if at is None:
            at = self._index.get(self._successors.get(anchor.key, ""))
            return None if at is None else Position(at, -1, 0)
        entry = self.entries[at]
        piece = min(anchor.piece, len(entry.pieces) - 1)
        if piece < 0:
            return Position(at, -1, 0)
        self.measure(at, piece)
        line = min(anchor.line, entry.heights[piece] - 1)
        if at_other_width and anchor.is_drawn:
            above = list(accumulate(map(_count_chars, self.strips(entry.pieces[piece]))))
            line = min(bisect_right(above, anchor.chars_above), len(above) - 1)
        return Position(at, piece, max(0, line))

    # drawing

    def line(self, y: int) -> DrawnLine | None:
        position = self.position_at(y)
        if position is None:
            return None
        entry = self.entries[position.entry]
        if position.piece < 0:
            return DrawnLine(entry, self._blank, is_gap=True)
        strips = self.strips(entry.pieces[position.piece])
        return DrawnLine(entry, strips[position.line] if position.line < len(strips) else self._blank)

    def strips(self, piece: Piece) -> list[Strip]:
        kept = self._cache.get(piece)
        if kept is not None:
            self._cache.move_to_end(piece)
            return kept
        assert self._palette is not None
        strips = make_strips(piece.draw(self.width, self._palette), self.width) or [self._blank]
        self._cache[piece] = strips
        self._cached_lines += len(strips)
        while self._cached_lines > MAX_CACHED_LINES and len(self._cache) > 1:
            _, oldest = self._cache.popitem(last=False)
            self._cached_lines -= len(oldest)
        return strips

    def measure(self, at: int, piece: int) -> int:
        """Return the height of a piece, drawing it if necessary."""
        entry = self.entries[at]
        if not entry.is_drawn[piece] and entry.set_height(piece, len(self.strips(entry.pieces[piece]))):
            self._stale = min(self._stale, at)
        return entry.heights[piece]

    def draw_around(self, position: Position, above: int, below: int) -> None:
        """Draw so many lines above and below a position."""
        left = above - max(0, position.line)
        at, piece = position.entry, position.piece - 1
        while left > 0 and at >= 0:
            if piece < 0:
                left -= self.entries[at].gap
                at -= 1
                piece = len(self.entries[at].pieces) - 1 if at >= 0 else -1
                continue
            left -= self.measure(at, piece)
            piece -= 1
        left = below + max(0, position.line)
        at, piece = position.entry, max(0, position.piece)
        while left > 0 and at < len(self.entries):
            if piece >= len(self.entries[at].pieces):
                at, piece = at + 1, 0
                continue
            left -= self.measure(at, piece)
            piece += 1

    def draw_end(self, lines: int) -> None:
        """Draw the last lines."""
        if self.entries:
            last = len(self.entries) - 1
            self.draw_around(Position(last, len(self.entries[last].pieces), 0), lines, 0)


def _successors(order: Sequence[str], removed: Collection[str]) -> dict[str, str]:
    """Return for each removed key the next one that remains, or else the one before."""
    successors: dict[str, str] = {}
    for direction in (order[::-1], order):
        remaining: str | None = None
        for key in direction:
            if key not in removed:
                remaining = key
            elif remaining is not None:
                successors.setdefault(key, remaining)
    return successors


def _count_chars(strip: Strip) -> int:
    return sum(len(segment.text) - segment.text.count(" ") for segment in strip)
