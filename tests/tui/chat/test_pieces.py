"""Every kind of block, with any text, in any width."""

from __future__ import annotations

import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from kedge.protocol.runs import Usage
from kedge.tui.chat.calls import ViewOptions
from kedge.tui.chat.lines import make_strips
from kedge.tui.chat.pieces import get_copy_text, is_foldable, make_pieces
from kedge.tui.state.blocks import Block, EndBlock, NoteBlock, PromptBlock, ReasoningBlock, ShellBlock, TextBlock
from tests.tui.chat.support import END, KINDS, PALETTE, call, texts

WILD = st.text(st.characters() | st.sampled_from("\x1b\x07\r\n\t[]漢👩\u200d🚀\ufe0f\u0301 "), max_size=60)


def seen(block: Block, *, is_unfolded: bool = False, width: int = 40) -> list[str]:
    pieces = make_pieces(block, ViewOptions(is_unfolded))
    return [line for piece in pieces for line in texts(piece.draw(width, PALETTE))]


@given(WILD, st.integers(1, 70), st.booleans())
def test_each_line_is_exactly_as_wide_as_asked_and_holds_no_control_character(
    text: str, width: int, is_unfolded: bool
) -> None:
    blocks: list[Block] = [
        PromptBlock(key="a", text=text, attachments=(text,)),
        TextBlock(key="b", text=text),
        ReasoningBlock(key="c", text=text),
        ReasoningBlock(key="d", text=text, is_open=True),
        call("bash", text, "running", text),
        call(text, f'{{"x": "{text}"}}', "failed", text),
        call("edit", text, metadata={"diff": f"--- {text}\n+++ b\n@@ -1 +1 @@\n-{text}\n+x\n"}),
        call("todos", metadata={"todos": [{"content": text, "status": text}]}),
        call("agent", text, child=(TextBlock(key="e", text=text),), output=text),
        ShellBlock(key="f", command=text, output=text, exit_code=None),
        NoteBlock(key="g", kind="error", text=text, details=text),
        EndBlock(key="h", reason=None, model=text, usage=Usage()),
    ]
    for block in blocks:
        for piece in make_pieces(block, ViewOptions(is_unfolded)):
            assert piece.estimate_height(width) >= 1
            for strip in make_strips(piece.draw(width, PALETTE), width):
                assert strip.cell_length == width
                assert sum(segment.cell_length for segment in strip) == width
                assert not [each for each in strip.text if unicodedata.category(each) in ("Cc", "Cs", "Zl", "Zp")]
        get_copy_text(block)


def test_a_prompt_has_its_attachments_as_chips_and_is_folded_when_long() -> None:
    short, long = KINDS["prompt"]
    assert seen(short) == ["Find a place to anchor.", "Mud if you can.", " ▣ chart.png   ▣ notes.txt"]
    assert seen(long)[-1] == "… 8 more lines"
    assert seen(long, is_unfolded=True)[-1] == "line 19"
    assert not is_foldable(short)


def test_reasoning_is_one_line_with_its_latest_text() -> None:
    done, running, redacted = KINDS["thoughts"]
    assert seen(done) == ["∴ Thought  The wind is north."]
    assert seen(running) == ["∴ Thinking…  Then that"]
    assert len(seen(redacted, width=60)) == 1
    assert seen(done, is_unfolded=True) == ["∴ Thought", "The wind is north. So the lee is south."]


def test_a_shell_command_shows_its_output_and_exit_code() -> None:
    _, failed, *_ = KINDS["others"]
    assert seen(failed) == ["! make  exit 2", "  broken"]


def test_a_command_of_the_user_shows_all_of_a_long_listing() -> None:
    listing = "\n".join(f"file-{number}" for number in range(60))
    block = ShellBlock(key="ls", command="ls", output=listing, exit_code=0)
    assert len(seen(block)) == 61


def test_a_summary_unfolds_to_its_text() -> None:
    summary = KINDS["others"][5]
    assert seen(summary) == ["≡ the conversation was summarized"]
    assert seen(summary, is_unfolded=True) == ["≡ the conversation was summarized", "", "# All of it"]


def test_the_end_of_a_run_shows_tokens_and_cost() -> None:
    assert seen(END) == ["m-1 · 12.3k in · 678 out · $0.0123"]
    small = EndBlock(key="small", reason="end_turn", model="m-1", usage=Usage(123_456, 5, cost=0.000012))
    assert seen(small) == ["m-1 · 123k in · 5 out · $0.000012"]
    cut = EndBlock(key="x", reason="max_tokens", model=None, usage=Usage(10, 20, estimated=True))
    assert seen(cut) == ["≈10 in · 20 out · stopped: max tokens"]


def test_copies_are_the_source_text() -> None:
    assert get_copy_text(TextBlock(key="w", text="**x**")) == "**x**"
    assert get_copy_text(ShellBlock(key="s", command="ls", output="a\n", exit_code=0)) == "ls\na"
    assert get_copy_text(NoteBlock(key="n", kind="info", text="a", details="b")) == "a\nb"
    assert get_copy_text(END) == "m-1 · 12.3k in · 678 out · $0.0123"
