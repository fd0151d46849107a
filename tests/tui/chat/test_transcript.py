"""The transcript follows the end, keeps its place, folds, selects and copies."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from textual.geometry import Offset
from textual.selection import Selection

from kedge.tui.state.blocks import Block, PromptBlock, ReasoningBlock, TextBlock
from tests.tui.chat.support import EDIT, KINDS, Chat, call, paragraphs

LONG = call("bash", '{"command": "x"}', output="\n".join(f"out {i}" for i in range(30)), key="long")


def is_folded(app: Chat) -> bool:
    return any("… 20 more lines" in line for line in app.seen)


async def test_the_end_stays_visible_as_lines_are_added() -> None:
    app = Chat(paragraphs(50))
    async with app.run_test(size=(40, 10)) as pilot:
        assert app.seen[-1] == "  w 49 word"
        app.transcript.show(paragraphs(60))
        await pilot.pause()
        assert app.transcript.is_following
        assert app.seen[-1] == "  w 59 word"


async def test_after_scrolling_up_the_view_stays_and_new_lines_are_counted() -> None:
    app = Chat(paragraphs(50))
    async with app.run_test(size=(40, 10)) as pilot:
        await pilot.press("pageup", "pageup")
        await pilot.pause()
        before = app.seen
        app.transcript.show(paragraphs(53))
        await pilot.pause()
        assert not app.transcript.is_following
        assert app.transcript.new_lines == 6
        assert app.seen == before, "nothing is drawn over the text"
        await pilot.press("end")
        await pilot.pause()
        assert app.transcript.is_following
        assert app.seen[-1] == "  w 52 word"


async def test_growth_above_does_not_move_visible_lines() -> None:
    blocks = paragraphs(60)
    app = Chat(blocks)
    async with app.run_test(size=(40, 12)) as pilot:
        await pilot.press("pageup", "pageup")
        await pilot.pause()
        before = app.seen
        blocks[20] = TextBlock(key="w20", revision=1, text="more\n\n" * 30)
        app.transcript.show([*paragraphs(7, "earlier"), *blocks])
        await pilot.pause()
        assert app.seen == before


@settings(max_examples=6, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.data())
async def test_changes_out_of_sight_do_not_move_visible_lines(data: st.DataObject) -> None:
    blocks = paragraphs(40)
    app = Chat(blocks)
    async with app.run_test(size=(40, 12)) as pilot:
        app.transcript.scroll_to(y=data.draw(st.integers(20, 50)), animate=False)
        await pilot.pause()
        before = app.seen
        first = int(next(line for line in before if line.strip()).split()[1])
        last = int([line for line in before if line.strip()][-1].split()[1])
        for revision in range(1, 4):
            at = data.draw(st.integers(0, 39).filter(lambda at: not first - 1 <= at <= last))
            text = "again\n\n" * data.draw(st.integers(1, 9))
            blocks = [*blocks[:at], TextBlock(key=f"w{at}", revision=revision, text=text), *blocks[at + 1 :]]
            if data.draw(st.booleans()):
                blocks = [*paragraphs(data.draw(st.integers(1, 5)), f"new{revision}-"), *blocks]
                app.transcript.show(blocks)
                await pilot.pause()
                break
            app.transcript.show(blocks)
            await pilot.pause()
        assert app.seen[:-1] == before[:-1]


async def test_scrolling_into_undrawn_lines_does_not_jump() -> None:
    blocks: list[Block] = [TextBlock(key=str(i), text=f"head {i}\n\n- a\n- b\n- {i}\n") for i in range(80)]
    app = Chat(blocks)
    async with app.run_test(size=(40, 10)) as pilot:
        for _ in range(30):
            before = app.seen
            app.transcript.scroll_relative(y=-3, animate=False)
            await pilot.pause()
            assert app.seen[3:] == before[:-3]


async def test_a_resize_keeps_the_first_visible_text() -> None:
    blocks: list[Block] = [TextBlock(key=str(i), text=f"{i} " + "many words " * 12) for i in range(40)]
    app = Chat(blocks)
    async with app.run_test(size=(60, 12)) as pilot:
        app.transcript.scroll_to(y=app.transcript._block_layout.tops[20] + 1, animate=False)
        await pilot.pause()
        assert app.seen[0].startswith("  20 many")
        await pilot.resize_terminal(33, 15)
        await pilot.pause()
        assert app.seen[0].startswith("  20 many")
        await pilot.resize_terminal(90, 8)
        await pilot.pause()
        assert app.seen[0].startswith("  20 many")


async def test_a_resize_at_the_end_stays_at_the_end() -> None:
    app = Chat([*paragraphs(40, words="many words " * 12), PromptBlock(key="last", text="the last")])
    async with app.run_test(size=(60, 12)) as pilot:
        for size in [(30, 20), (100, 8)]:
            await pilot.resize_terminal(*size)
            await pilot.pause()
            assert app.seen[-1] == "▌ the last"


async def test_a_call_unfolds_in_place_and_folds_again() -> None:
    app = Chat([*paragraphs(3), LONG])
    async with app.run_test(size=(40, 20)) as pilot:
        assert is_folded(app)
        top = app.seen[0]
        app.transcript.toggle("long")
        await pilot.pause()
        assert app.seen[0] == top
        assert not is_folded(app)
        app.transcript.toggle("long")
        await pilot.pause()
        assert is_folded(app)
        assert app.transcript.is_following


async def test_all_blocks_of_a_kind_unfold_also_later_ones() -> None:
    blocks: list[Block] = [ReasoningBlock(key="1", text="a\n\nb"), ReasoningBlock(key="2", text="c\n\nd")]
    app = Chat(blocks)
    async with app.run_test(size=(40, 20)) as pilot:
        app.transcript.toggle_all(ReasoningBlock)
        app.transcript.show([*blocks, ReasoningBlock(key="3", text="e\n\nf")])
        await pilot.pause()
        assert {"  b", "  d", "  f"} <= set(app.seen)
        app.transcript.toggle_all(ReasoningBlock)
        await pilot.pause()
        assert not {"  b", "  d", "  f"} & set(app.seen)


async def test_keys_select_fold_copy_and_open() -> None:
    app = Chat([TextBlock(key="w", text="**bold**"), EDIT, LONG])
    async with app.run_test(size=(60, 40)) as pilot:
        await pilot.press("up")
        assert app.transcript.selected is LONG
        await pilot.press("space")
        assert not is_folded(app)
        await pilot.press("enter")
        assert is_folded(app)
        await pilot.press("up", "enter")
        await pilot.pause()
        assert app.opened == [EDIT]
        await pilot.press("up", "c")
        await pilot.pause()
        assert app.copied == ["**bold**"]
        assert app.seen[0] == "▎ bold"
        await pilot.press("down")
        assert app.transcript.selected is EDIT


async def test_the_selection_is_scrolled_into_view() -> None:
    app = Chat(paragraphs(40))
    async with app.run_test(size=(40, 10)) as pilot:
        for _ in range(12):
            await pilot.press("up")
        await pilot.pause()
        selected = app.transcript.selected
        assert selected is not None
        assert f"▎ {selected.key[0]} {selected.key[1:]} word" in app.seen


async def test_a_click_on_a_header_unfolds_and_two_open() -> None:
    app = Chat([LONG, EDIT])
    async with app.run_test(size=(60, 40)) as pilot:
        await pilot.click(app.transcript, offset=Offset(5, 0))
        await pilot.pause()
        assert not is_folded(app)
        await pilot.click(app.transcript, offset=Offset(8, 3))
        await pilot.pause()
        assert not is_folded(app), "a click into the text is for the text"
        y = next(i for i, line in enumerate(app.seen) if "edit src" in line)
        await pilot.double_click(app.transcript, offset=Offset(5, y))
        await pilot.pause()
        assert app.opened == [EDIT]


async def test_the_mouse_selects_text_as_drawn() -> None:
    app = Chat([TextBlock(key="a", text="first **words** here"), TextBlock(key="b", text="second ones")])
    async with app.run_test(size=(40, 10)) as pilot:
        await pilot.mouse_down(app.transcript, offset=Offset(8, 0))
        await pilot.hover(app.transcript, offset=Offset(7, 2))
        await pilot.mouse_up(app.transcript, offset=Offset(7, 2))
        await pilot.pause()
        assert app.screen.get_selected_text() == "words here\n\n  second"
        ground = app.transcript.rich_style.bgcolor
        styled = [(segment.text, segment.style) for segment in app.transcript.render_line(0) if segment.style]
        assert "".join(text for text, style in styled if style.bgcolor != ground) == "words here"


async def test_a_selection_keeps_its_text_when_heights_above_change() -> None:
    blocks: list[Block] = [TextBlock(key=str(i), text=f"head {i}\n\n- a\n- b\n") for i in range(80)]
    app = Chat(blocks)
    async with app.run_test(size=(40, 10)) as pilot:
        transcript = app.transcript
        at = next(y for y in range(10) if "head" in transcript.render_line(y).text)
        line = transcript.render_line(at)
        y = next(
            segment.style.meta["offset"][1] for segment in line if segment.style and "offset" in segment.style.meta
        )
        app.screen.selections = {transcript: Selection(Offset(2, y), Offset(9, y))}
        for _ in range(4):
            transcript.scroll_relative(y=-3, animate=False)
            await pilot.pause()
        assert app.screen.get_selected_text() == line.text[2:9]


async def test_everything_can_be_selected() -> None:
    app = Chat(paragraphs(100))
    async with app.run_test(size=(40, 10)):
        app.transcript.text_select_all()
        text = app.screen.get_selected_text()
        assert text is not None
        assert text.count("word") == 100


async def test_streamed_text_looks_like_text_shown_at_once() -> None:
    text = "# Head\n\nSome *words*.\n\n- a\n- b\n\n```python\nx = 1\n```\nend"
    app, whole = Chat(), Chat([TextBlock(key="w", text=text)])
    async with app.run_test(size=(40, 20)) as pilot:
        for end in range(1, len(text) + 1):
            app.transcript.show([TextBlock(key="w", revision=end, text=text[:end], is_open=True)])
        await pilot.pause()
        streamed = app.seen
    async with whole.run_test(size=(40, 20)):
        assert whole.seen == streamed


async def test_shown_before_there_is_a_size_and_cleared() -> None:
    app = Chat()
    app.transcript.show(paragraphs(3))
    app.first = paragraphs(3)
    async with app.run_test(size=(40, 10)) as pilot:
        assert app.seen[0] == "  w 0 word"
        app.transcript.clear()
        await pilot.pause()
        assert not any(app.seen)
        app.transcript.show(paragraphs(1, "x"))
        await pilot.pause()
        assert app.seen[0] == "  x 0 word"


async def test_diffs_go_side_by_side_and_back() -> None:
    app = Chat([EDIT])
    async with app.run_test(size=(100, 30)) as pilot:
        assert not any("│" in line for line in app.seen)
        await pilot.press("s")
        await pilot.pause()
        assert any("│" in line for line in app.seen)


async def test_another_theme_draws_with_other_colors() -> None:
    app = Chat(KINDS["prompt"])
    async with app.run_test(size=(40, 20)) as pilot:
        before = [segment.style for segment in app.transcript.render_line(0)]
        app.theme = "textual-light"
        await pilot.pause()
        assert [segment.style for segment in app.transcript.render_line(0)] != before
