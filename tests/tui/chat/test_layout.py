"""Lines know where they are; guesses become heights without anybody who holds on to a line being moved."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kedge.tui.chat import layout as flows
from kedge.tui.chat.calls import ViewOptions
from kedge.tui.chat.layout import Flow
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


def flow_of(blocks: list[Block], width: int = 30) -> Flow:
    flow = Flow()
    flow.resize(width, PALETTE)
    flow.show(blocks, view)
    return flow


def measure_all(flow: Flow) -> list[str]:
    flow.before_end(10**6)
    found = [flow.line(y) for y in range(flow.height)]
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
def test_after_any_changes_it_is_as_if_shown_at_once(steps: list[list[tuple[int, str, str]]]) -> None:
    flow = flow_of([])
    for step in steps:
        blocks = blocks_of(step)
        flow.show(blocks, view)
        flow.before_end(7)
        assert flow.height == sum(entry.height for entry in flow.entries)
    seen = measure_all(flow)
    assert seen == measure_all(flow_of(blocks_of(steps[-1])))
    for entry in flow.entries:
        assert entry.heights == [len(flow.strips(piece)) for piece in entry.pieces]


@settings(max_examples=40)
@given(BLOCKS, st.integers(0, 200))
def test_every_line_has_one_place(given_blocks: list[tuple[int, str, str]], y: int) -> None:
    flow = flow_of(blocks_of(given_blocks))
    place = flow.place(y)
    assert (place is None) == (y >= flow.height)
    if place is not None:
        assert flow.y_of(place) == y


@settings(max_examples=60)
@given(BLOCKS, BLOCKS, st.integers(0, 100))
def test_a_line_one_holds_on_to_is_found_again(
    before: list[tuple[int, str, str]], after: list[tuple[int, str, str]], at: int
) -> None:
    old, new = blocks_of(before), blocks_of(after)
    flow = flow_of(old)
    measure_all(flow)
    if not flow.height:
        return
    y = at % flow.height
    anchor, line = flow.anchor(y), flow.line(y)
    assert anchor is not None
    assert line is not None
    block = line[0].block
    flow.show(new, view)
    place = flow.find(anchor, at_other_width=False)
    kept = next((each for each in new if each.key == block.key), None)
    if kept is None:
        assert place is None or flow.entries[place.entry].block.key in {each.key for each in old}
        return
    assert place is not None
    assert flow.entries[place.entry].block.key == block.key
    flow.around(place, 20, 20)
    if kept.revision == block.revision and place.piece >= 0:
        found = flow.line(flow.y_of(place))
        assert found is not None
        assert found[1].text == line[1].text


@given(
    st.lists(st.sampled_from(TEXTS), min_size=1, max_size=8), st.integers(8, 60), st.integers(8, 60), st.integers(0, 99)
)
def test_at_another_width_the_same_words_are_found(said: list[str], old: int, new: int, at: int) -> None:
    blocks: list[Block] = [TextBlock(key=str(i), text=text) for i, text in enumerate(said)]
    flow = flow_of(blocks, old)
    measure_all(flow)
    y = at % flow.height
    anchor, line = flow.anchor(y), flow.line(y)
    assert anchor is not None
    assert line is not None
    flow.resize(new, PALETTE)
    place = flow.find(anchor, at_other_width=True)
    assert place is not None
    found = flow.line(flow.y_of(place))
    assert found is not None
    assert found[0].block.key == line[0].block.key
    first = line[1].text.split()
    if first and place.piece >= 0:
        words = measure_all(flow)[flow.y_of(place)].split()
        assert not words or first[0] in words or words[0] in said[int(found[0].block.key)]


def test_only_what_is_looked_at_is_drawn() -> None:
    flow = flow_of(paragraphs(2_000))
    flow.before_end(50)
    assert sum(any(entry.is_drawn) for entry in flow.entries) <= 60


def test_what_was_drawn_is_forgotten_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flows, "MAX_KEPT_LINES", 50)
    flow = flow_of(paragraphs(100))
    assert len(measure_all(flow)) == 199
    assert sum(len(strips) for strips in flow._kept.values()) == 50


def test_showing_the_same_again_changes_nothing() -> None:
    blocks = paragraphs(10)
    flow = flow_of(blocks)
    assert flow.show([TextBlock(key=block.key, text="w") for block in blocks], view) is None


@settings(max_examples=25)
@given(st.integers(0, 39))
def test_a_block_that_goes_leaves_the_reader_beside_it(gone: int) -> None:
    blocks = paragraphs(40)
    flow = flow_of(blocks)
    at = flow.index_of(blocks[gone].key)
    assert at is not None
    anchor = flow.anchor(flow.tops[at + 1] - 1)
    assert anchor is not None
    flow.show([block for block in blocks if block is not blocks[gone]], view)
    place = flow.find(anchor, at_other_width=False)
    assert place is not None
    assert place.entry == min(gone, 38)
