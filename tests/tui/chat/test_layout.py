"""The layout: positions of lines, and anchors that stay while estimated heights become real ones."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kedge.tui.chat import layout as layouts
from kedge.tui.chat.calls import ViewOptions
from kedge.tui.chat.layout import BlockLayout
from kedge.tui.state.blocks import Block, PromptBlock, ReasoningBlock, TextBlock
from tests.tui.chat.support import PALETTE, call, paragraphs, texts

TEXTS = [
    "one line",
    "two\n\nparagraphs of text that are long enough to be broken at some widths",
    "- a\n- b\n- c\n",
    "```\nx\n\ny\n```",
]
BLOCKS = st.lists(st.tuples(st.integers(0, 12), st.sampled_from(TEXTS), st.sampled_from("WPTC")), max_size=12)


def view(_: Block) -> ViewOptions:
    return ViewOptions()


def make_layout(blocks: list[Block], width: int = 30) -> BlockLayout:
    layout = BlockLayout()
    layout.resize(width, PALETTE)
    layout.show(blocks, view)
    return layout


def measure_all(layout: BlockLayout) -> list[str]:
    layout.draw_end(10**6)
    found = [layout.line(y) for y in range(layout.height)]
    return texts(each[1] for each in found if each)


def blocks_of(given_blocks: list[tuple[int, str, str]]) -> list[Block]:
    blocks: dict[str, Block] = {}
    for number, text, kind in given_blocks:
        key, revision = f"{kind}{number}", TEXTS.index(text)
        match kind:
            case "W":
                blocks[key] = TextBlock(key=key, revision=revision, text=text)
            case "P":
                blocks[key] = PromptBlock(key=key, revision=revision, text=text)
            case "T":
                blocks[key] = ReasoningBlock(key=key, revision=revision, text=text)
            case _:
                blocks[key] = call("bash", key=key, revision=revision, output=text)
    return list(blocks.values())


@settings(max_examples=50)
@given(st.lists(BLOCKS, min_size=1, max_size=4))
def test_any_sequence_of_changes_gives_the_same_lines_as_showing_the_result(
    steps: list[list[tuple[int, str, str]]],
) -> None:
    layout = make_layout([])
    for step in steps:
        blocks = blocks_of(step)
        layout.show(blocks, view)
        layout.draw_end(7)
        assert layout.height == sum(entry.height for entry in layout.entries)
    seen = measure_all(layout)
    assert seen == measure_all(make_layout(blocks_of(steps[-1])))
    for entry in layout.entries:
        assert entry.heights == [len(layout.strips(piece)) for piece in entry.pieces]


@settings(max_examples=40)
@given(BLOCKS, st.integers(0, 200))
def test_every_line_has_one_position(given_blocks: list[tuple[int, str, str]], y: int) -> None:
    layout = make_layout(blocks_of(given_blocks))
    position = layout.position_at(y)
    assert (position is None) == (y >= layout.height)
    if position is not None:
        assert layout.get_y(position) == y


@settings(max_examples=60)
@given(BLOCKS, BLOCKS, st.integers(0, 100))
def test_an_anchored_line_is_found_again(
    before: list[tuple[int, str, str]], after: list[tuple[int, str, str]], at: int
) -> None:
    old, new = blocks_of(before), blocks_of(after)
    layout = make_layout(old)
    measure_all(layout)
    if not layout.height:
        return
    y = at % layout.height
    anchor, line = layout.anchor(y), layout.line(y)
    assert anchor is not None
    assert line is not None
    block = line[0].block
    layout.show(new, view)
    position = layout.find(anchor, at_other_width=False)
    kept = next((each for each in new if each.key == block.key), None)
    if kept is None:
        assert position is None or layout.entries[position.entry].block.key in {each.key for each in old}
        return
    assert position is not None
    assert layout.entries[position.entry].block.key == block.key
    layout.draw_around(position, 20, 20)
    if kept.revision == block.revision and position.piece >= 0:
        found = layout.line(layout.get_y(position))
        assert found is not None
        assert found[1].text == line[1].text


@given(
    st.lists(st.sampled_from(TEXTS), min_size=1, max_size=8), st.integers(8, 60), st.integers(8, 60), st.integers(0, 99)
)
def test_an_anchor_finds_the_same_text_at_another_width(said: list[str], old: int, new: int, at: int) -> None:
    blocks: list[Block] = [TextBlock(key=str(i), text=text) for i, text in enumerate(said)]
    layout = make_layout(blocks, old)
    measure_all(layout)
    y = at % layout.height
    anchor, line = layout.anchor(y), layout.line(y)
    assert anchor is not None
    assert line is not None
    layout.resize(new, PALETTE)
    position = layout.find(anchor, at_other_width=True)
    assert position is not None
    found = layout.line(layout.get_y(position))
    assert found is not None
    assert found[0].block.key == line[0].block.key
    first = line[1].text.split()
    if first and position.piece >= 0:
        words = measure_all(layout)[layout.get_y(position)].split()
        assert not words or first[0] in words or words[0] in said[int(found[0].block.key)]


def test_only_visible_lines_are_drawn() -> None:
    layout = make_layout(paragraphs(2_000))
    layout.draw_end(50)
    assert sum(any(entry.is_drawn) for entry in layout.entries) <= 60


def test_the_cache_of_drawn_lines_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layouts, "MAX_CACHED_LINES", 50)
    layout = make_layout(paragraphs(100))
    assert len(measure_all(layout)) == 199
    assert sum(len(strips) for strips in layout._cache.values()) == 50


def test_showing_the_same_again_changes_nothing() -> None:
    blocks = paragraphs(10)
    layout = make_layout(blocks)
    assert layout.show([TextBlock(key=block.key, text="w") for block in blocks], view) is None


@settings(max_examples=25)
@given(st.integers(0, 39))
def test_an_anchor_in_a_removed_block_moves_to_its_neighbor(gone: int) -> None:
    blocks = paragraphs(40)
    layout = make_layout(blocks)
    at = layout.get_index(blocks[gone].key)
    assert at is not None
    anchor = layout.anchor(layout.tops[at + 1] - 1)
    assert anchor is not None
    layout.show([block for block in blocks if block is not blocks[gone]], view)
    position = layout.find(anchor, at_other_width=False)
    assert position is not None
    assert position.entry == min(gone, 38)
