"""Tool calls: a header with subject and state, and the output below."""

from __future__ import annotations

import pytest

from kedge.protocol.runs import Usage
from kedge.tui.chat.calls import ViewOptions, get_call_text
from kedge.tui.chat.pieces import make_pieces
from kedge.tui.state.blocks import CallBlock, CallState, EndBlock, PromptBlock, TextBlock
from tests.tui.chat.support import EDIT, PALETTE, TODOS, call, texts


def seen(block: CallBlock, width: int = 60, *, is_unfolded: bool = False, is_split: bool | None = None) -> list[str]:
    view = ViewOptions(is_unfolded, is_split)
    return [line for piece in make_pieces(block, view) for line in texts(piece.draw(width, PALETTE))]


@pytest.mark.parametrize(
    ("name", "given_input", "subject"),
    [
        ("bash", '{"command": "ls -l"}', "ls -l"),
        ("bash", '{"command": "cd x\\nmake"}', "cd x …"),
        ("view", '{"path": "a.py"}', "a.py"),
        ("view", '{"path": "a.py", "offset": 5, "limit": 10}', "a.py:5-14"),
        ("edit", '{"path": "a.py", "old_string": "x', "a.py"),
        ("multiedit", '{"path": "a.py", "edits": [{}, {}]}', "a.py (2 edits)"),
        ("write", '{"path": "a.py", "content": "lo', "a.py"),
        ("glob", '{"pattern": "*.py"}', "*.py"),
        ("grep", '{"pattern": "x", "path": "src", "include": "*.py"}', "x in src (*.py)"),
        ("ls", '{"path": "src"}', "src"),
        ("fetch", '{"url": "https://x.y"}', "https://x.y"),
        ("download", '{"url": "https://x.y", "path": "f"}', "https://x.y → f"),
        ("todos", TODOS, "1 of 2 done"),
        ("question", '{"questions": [{"question": "Which?"}, {"question": "Why?"}]}', "Which? (+1)"),
        ("agent", '{"title": "Look", "prompt": "Look around"}', "Look"),
        ("agent", '{"prompt": "Look\\naround"}', "Look around"),
        ("job_output", '{"job_id": "j1"}', "j1"),
        ("job_kill", '{"job_id": "j1"}', "j1"),
        ("mcp_x_y", '{"only": "this"}', "this"),
        ("mcp_x_y", '{"a": true, "b": [1, 2], "c": {"d": 1}, "e": "f\\ng"}', "a=true b=[2] c={…} e=f g"),
        ("unknown", "not json", ""),
    ],
)
def test_the_header_shows_the_subject(name: str, given_input: str, subject: str) -> None:
    header = seen(call(name, given_input, "waiting"))[0]
    assert header == f"○ {name} {subject}".rstrip()


@pytest.mark.parametrize(
    ("state", "mark"),
    [
        ("writing", "○"),
        ("asking", "●"),
        ("waiting", "○"),
        ("running", "●"),
        ("done", "✓"),
        ("failed", "✗"),
        ("interrupted", "✗"),
    ],
)
def test_the_mark_shows_the_state(state: CallState, mark: str) -> None:
    assert seen(call("ls", state=state))[0].startswith(f"{mark} ls")


def test_a_header_is_one_line_however_long_the_command() -> None:
    lines = seen(call("bash", '{"command": "' + "x" * 500 + '"}', metadata={"exit_code": 3}, output="o"), 40)
    assert len(lines[0]) == 40
    assert lines[0].endswith("…  exit 3")


def test_a_command_shows_its_last_lines_and_all_when_unfolded() -> None:
    block = call("bash", '{"command": "x"}', "running", "\n".join(map(str, range(25))) + "\n")
    assert seen(block)[1:3] == ["  … 15 more lines", "  15"]
    assert seen(block)[-1] == "  24"
    assert len(seen(block, is_unfolded=True)) == 26


def test_an_unfolded_command_shows_every_line_of_itself() -> None:
    lines = seen(call("bash", '{"command": "cd x\\nmake"}', output="ok"), is_unfolded=True)
    assert lines == ["✓ bash cd x …", "  cd x", "  make", "  ok"]


def test_an_edit_shows_its_diff_with_counts() -> None:
    lines = seen(EDIT)
    assert lines[0] == "✓ edit src/anchor.py  +3 -2"
    assert lines[2] == "   11 -     return depth"


def test_a_diff_is_side_by_side_if_there_is_room_unless_the_user_chose_otherwise() -> None:
    assert " │ " in "".join(seen(EDIT, 130)).replace("│", " │ ")
    assert "│" not in "".join(seen(EDIT, 100))
    assert "│" not in "".join(seen(EDIT, 130, is_split=False))
    assert "│" in "".join(seen(EDIT, 100, is_split=True))


def test_a_long_diff_is_folded() -> None:
    diff = "--- a\n+++ a\n@@ -0,0 +1,50 @@\n" + "".join(f"+{i}\n" for i in range(50))
    block = call("write", '{"path": "a"}', metadata={"diff": diff, "added": 50, "removed": 0})
    assert seen(block)[-1] == "  … 30 more lines"
    assert len(seen(block, is_unfolded=True)) == 51


def test_todos_are_a_checklist() -> None:
    assert seen(call("todos", TODOS))[1:] == ["  ☑ chart", "  ◐ sail"]


def test_results_of_read_only_tools_are_counted_and_shown_when_unfolded() -> None:
    block = call("view", '{"path": "a"}', output="one\ntwo")
    assert seen(block) == ["✓ view a  2 lines"]
    assert seen(block, is_unfolded=True) == ["✓ view a", "  one", "  two"]


def test_an_error_is_shown_while_folded() -> None:
    assert seen(call("view", '{"path": "a"}', "failed", "No such file.")) == ["✗ view a", "  No such file."]


def test_an_error_is_broken_at_its_words() -> None:
    error = "there is no such file in this workspace"
    assert seen(call("view", '{"path": "a"}', "failed", error), 26)[1:] == [
        "  there is no such file in",
        "  this workspace",
    ]


def test_a_sub_agent_shows_its_last_calls_and_all_of_them_unfolded() -> None:
    child = (TextBlock(key="w", text="Hello."), *(call("ls", f'{{"path": "d{i}"}}', key=str(i)) for i in range(6)))
    running = call("agent", '{"title": "Look"}', "running", child=child)
    assert seen(running) == ["● agent Look", *(f"  │ ✓ ls d{i}  0 lines" for i in range(2, 6))]
    done = call("agent", '{"title": "Look"}', output="Found it.", child=child)
    assert seen(done) == ["✓ agent Look  6 calls", "  Found it."]
    assert seen(done, is_unfolded=True)[1:4] == ["  │ Hello.", "  │", "  │ ✓ ls d0  0 lines"]


@pytest.mark.parametrize("title", ["", '"title": "Look", '])
def test_an_unfolded_sub_agent_shows_its_prompt_and_its_report_once(title: str) -> None:
    child = (
        PromptBlock(key="p", text="Look around"),
        call("ls", '{"path": "bay"}', key="l"),
        TextBlock(key="w", text="Found it.\n"),
        EndBlock(key="e", reason="end_turn", model="m", usage=Usage()),
    )
    done = call("agent", f'{{{title}"prompt": "Look around"}}', output="Found it.", child=child)
    shown = "\n".join(seen(done, is_unfolded=True))
    assert shown.count("Look around") == shown.count("Found it.") == shown.count("ls bay") == 1


def test_the_header_names_images_jobs_and_pending_permissions() -> None:
    assert seen(call("view", '{"path": "a.png"}', images=2))[0].endswith("▣ 2 images")
    assert seen(call("bash", '{"command": "x"}', metadata={"job_id": "j7"}))[0] == "✓ bash x  job j7"
    assert seen(call("bash", '{"command": "x"}', "asking"))[0].startswith("● bash x  ")
    assert seen(call("write", '{"path": "a", "content": "' + "x" * 2000, "writing"))[0] == "○ write a  2.0 kB"


def test_a_copy_has_the_command_and_its_output() -> None:
    assert get_call_text(call("bash", '{"command": "a\\nb"}', output="c")) == "bash a\nb\nc"
    assert get_call_text(EDIT).startswith("edit src/anchor.py\n--- src/anchor.py")
