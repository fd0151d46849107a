"""Markdown as it looks in a terminal."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from rich.segment import Segment

from kedge.tui.chat.chunks import Chunk, Splitter
from kedge.tui.chat.lines import Line, make_strip
from kedge.tui.chat.markdown import draw_chunk
from tests.tui.chat.support import MARKDOWN, PALETTE, texts


def lines_of(text: str, width: int = 40) -> list[Line]:
    splitter = Splitter()
    splitter.grow(text)
    chunks = [*splitter.chunks, *([splitter.tail] if splitter.tail else [])]
    return [line for chunk in chunks for line in draw_chunk(chunk, width, PALETTE)]


def seen(text: str, width: int = 40) -> list[str]:
    return texts(lines_of(text, width))


def segment(lines: list[Line], text: str) -> Segment:
    return next(each for line in lines for each in line if each.text.strip() == text)


def test_every_kind_of_block_is_drawn() -> None:
    assert seen(MARKDOWN) == [
        "# Holding ground",
        "",
        "A kedge is a small anchor with flukes,",
        "see anchor.py and the manual.",
        "",
        "• mud",
        "• sand",
        "  ◦ fine",
        "  ◦ coarse",
        "☐ rock",
        "☑ weed",
        "",
        "1. lower",
        "2. veer",
        "",
        "▎ Let it bite.",
        "",
        " def hold(rope: int) -> bool:",
        "     return rope > 5  # times the depth",
        "",
        "ground │ holds",
        "───────┼──────",
        "mud    │  good",
        "rock   │  poor",
        "",
        "─" * 40,
    ]


def test_emphasis_code_and_links_have_their_styles() -> None:
    lines = lines_of("a *b* **c** ~~d~~ `e` [f](https://x.y/)")
    for text, attribute in [("b", "italic"), ("c", "bold"), ("d", "strike")]:
        style = segment(lines, text).style
        assert style is not None
        assert getattr(style, attribute)
    link = segment(lines, "f").style
    assert link is not None
    assert link.link == "https://x.y/"


def test_an_address_that_is_not_a_web_page_is_not_a_link() -> None:
    style = segment(lines_of("[f](javascript:alert)"), "[f](javascript:alert)").style
    assert style is not None
    assert style.link is None
    for line in lines_of("[f](x-man-page://ls) [g](<https://a b\x1b>)"):
        assert all(each.style is None or not each.style.link or "\x1b" not in each.style.link for each in line)


def test_html_is_text() -> None:
    assert seen("<script>x</script> and <b>y</b>") == ["<script>x</script> and <b>y</b>"]


def test_entities_cannot_insert_control_characters() -> None:
    assert all(each.isprintable() for each in seen("&#27;[31m &#x9b;5n &#8238;x `&#7;`"))


def test_code_is_highlighted_unless_its_language_is_unknown() -> None:
    known = lines_of("```python\ndef f(): pass\n```")
    unknown = lines_of("```nosuch\ndef f(): pass\n```")
    assert texts(known) == texts(unknown) == [" def f(): pass"]
    assert len(known[0]) > len(unknown[0])


def test_a_long_line_of_code_continues_below() -> None:
    assert seen("```\n" + "x" * 45 + "\n```", 22) == [" " + "x" * 20, " " + "x" * 20, " " + "x" * 5]


def test_a_table_shrinks_and_then_becomes_a_list() -> None:
    table = "| name | what it is |\n|---|---|\n| kedge | a small anchor to pull by |\n"
    assert seen(table, 24) == [
        "name  │ what it is",
        "──────┼─────────────────",
        "kedge │ a small anchor",
        "      │ to pull by",
    ]
    assert seen(table, 9)[0] == "name:"


def test_code_of_a_long_fence_is_highlighted_in_context() -> None:
    inside = "".join(f"line {i}\n" for i in range(60))
    splitter = Splitter()
    splitter.grow(f'```python\nx = """\n{inside}"""\ny = 1\n```\n')
    second = draw_chunk(splitter.chunks[1], 40, PALETTE)
    assert segment(second, "line 45").style == segment(draw_chunk(splitter.chunks[0], 40, PALETTE), "line 5").style


@given(st.text(max_size=200) | st.text(st.sampled_from("*_`[]()<>#-+1. \n|~!\\&;:x"), max_size=80), st.integers(1, 50))
def test_any_text_is_drawn_in_any_width(text: str, width: int) -> None:
    for line in lines_of(text, width):
        strip = make_strip(line, width)
        assert strip.cell_length == width
        assert strip.text.isprintable() or all(
            each.isprintable() or each.isspace() or ord(each) > 0xA0 for each in strip.text
        )


def test_deep_nesting_is_bounded() -> None:
    assert draw_chunk(Chunk("> " * 200 + "x"), 40, PALETTE)
    assert draw_chunk(Chunk("".join("  " * i + "- x\n" for i in range(100))), 20, PALETTE)


def test_sentences_are_at_most_110_columns_wide_and_code_and_tables_as_wide_as_they_need() -> None:
    words, code = "word " * 60, "x" * 150
    assert max(map(len, seen(f"{words}\n\n- {words}\n\n> {words}", 200))) <= 110
    assert any(code in line for line in seen(f"```\n{code}\n```", 200))
    table = f"| a | b |\n|---|---|\n| {'y' * 70} | {'z' * 70} |"
    assert any("y" * 70 in line and "z" * 70 in line for line in seen(table, 200))


def test_added_and_removed_lines_of_a_diff_have_backgrounds_of_their_own() -> None:
    chunk = Chunk("-old\n+new\n same", is_code=True, language="diff")
    lines = draw_chunk(chunk, 40, PALETTE)
    grounds = [{part.style.bgcolor for part in line if part.style} for line in lines]
    assert [len(each) for each in grounds] == [1, 1, 1]
    assert len({ground for each in grounds for ground in each}) == 3
