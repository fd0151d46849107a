"""Growing Markdown is split by its text, not by the pieces in which it arrives, and finished chunks never change."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kedge.tui.chat.chunks import MAX_CHUNK_CHARS, MAX_CODE_LINES, Chunk, Splitter
from kedge.tui.chat.markdown import draw_chunk
from tests.tui.chat.support import MARKDOWN, PALETTE, texts

LINES = st.lists(
    st.sampled_from(
        [
            "word\n", "two words", "\n", "\n\n", "- item\n", "  - nested\n", "* other\n", "1. one\n", "1. again\n",
            "```\n", "```python\n", "  ```\n", "~~~\n", "    code\n", "> quote\n", "# head\n", "---\n", "===\n",
            "[a]: http://x\n", "see [a] and [b][a]\n", "| a | b |\n", "|---|---|\n", "`", "**", "<b>", "\t", "-", "``",
            "7) x\n", "- - -\n",
        ]
    ),
    max_size=25,
)  # fmt: skip


def chunks_of(text: str) -> list[Chunk]:
    splitter = Splitter()
    splitter.grow(text)
    return [*splitter.chunks, *([splitter.tail] if splitter.tail else [])]


def seen(chunks: list[Chunk]) -> list[str]:
    return [line for chunk in chunks for line in texts(draw_chunk(chunk, 60, PALETTE))]


@given(LINES, st.lists(st.integers(0, 200), max_size=10))
def test_text_in_any_pieces_gives_the_same_chunks_as_at_once(lines: list[str], cuts: list[int]) -> None:
    text = "".join(lines)
    splitter = Splitter()
    known: list[Chunk] = []
    for end in [*sorted(cut for cut in cuts if cut < len(text)), len(text)]:
        changed = splitter.grow(text[:end])
        assert splitter.chunks[:changed] == known[:changed], "what it called unchanged is"
        known = list(splitter.chunks)
    grown = [*splitter.chunks, *([splitter.tail] if splitter.tail else [])]
    assert grown == chunks_of(text)
    assert seen(grown) == seen(chunks_of(text))


@given(LINES)
def test_no_text_is_lost(lines: list[str]) -> None:
    lines = [line for line in lines if not line.strip().startswith(("`", "~"))]  # what follows a fence is its language
    chunks = chunks_of("".join(lines))
    assert sum(chunk.text.count("word") for chunk in chunks) == sum(line.count("word") for line in lines)


def test_each_list_item_is_a_chunk_and_numbers_continue() -> None:
    chunks = chunks_of("1. one\n1. two\n\n   more\n1. three\n")
    assert [chunk.ordinal for chunk in chunks] == [1, 2, 3]
    assert seen(chunks) == ["1. one", "2. two", "", "   more", "3. three"]


def test_a_setext_heading_stays_with_its_line() -> None:
    assert seen(chunks_of("Title\n=====\n\ntext")) == ["# Title", "", "text"]


def test_an_empty_line_inside_a_fence_does_not_split_it() -> None:
    chunks = chunks_of("```\na\n\nb\n```\nafter")
    assert [(chunk.text, chunk.is_code) for chunk in chunks] == [("a\n\nb", True), ("after", False)]


def test_a_fence_inside_an_item_belongs_to_it() -> None:
    chunks = chunks_of("- see\n\n  ```\n  - no item\n\n  x\n  ```\n- next\n")
    assert [chunk.is_code for chunk in chunks] == [False, False]


def test_an_incomplete_closing_fence_is_not_drawn() -> None:
    assert seen(chunks_of("```\na\n``")) == [" a"]


def test_a_link_that_is_defined_later_is_a_link_from_then_on() -> None:
    splitter = Splitter()
    splitter.grow("see [it]\n\nother\n\n")
    assert splitter.grow("see [it]\n\nother\n\n[it]: http://x\n") == 0
    assert splitter.chunks[0].definitions == "[it]: http://x"
    assert seen(splitter.chunks[:1]) == ["see it"]


@pytest.mark.parametrize(
    "text", ["x" * 50_000, "word " * 10_000, "- a\n" * 9_000, "> q\n" * 9_000, "```\n" + "x\n" * 9_000]
)
def test_chunks_have_a_maximum_size(text: str) -> None:
    chunks = chunks_of(text)
    assert all(len(chunk.text) <= 2 * MAX_CHUNK_CHARS for chunk in chunks)
    assert all(chunk.text.count("\n") < MAX_CODE_LINES for chunk in chunks if chunk.is_code)


def test_a_different_text_starts_again() -> None:
    splitter = Splitter()
    splitter.grow("one\n\ntwo\n\n")
    assert splitter.grow("else\n\nwhere\n\nnow\n") == 0
    assert [chunk.text.strip() for chunk in splitter.chunks] == ["else", "where"]


def test_only_the_tail_changes_when_text_is_added() -> None:
    splitter = Splitter()
    splitter.grow(MARKDOWN)
    before = list(splitter.chunks)
    assert splitter.grow(MARKDOWN + "one") >= len(before) - 1
    assert splitter.chunks[: len(before)] == before
