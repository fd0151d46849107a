"""The diffs that are shown are true: `git apply` makes the one file of the other with them."""

from __future__ import annotations

import random
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kedge.files import diffs
from kedge.files.diffs import MAX_DIFF_CHARS, cut_diff, diff

TEXTS = st.lists(st.sampled_from(["a", "b", "c", "", "  d"]), max_size=30).map(
    lambda lines: "".join(f"{x}\n" for x in lines)
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None)
@given(TEXTS, TEXTS)
def test_a_diff_turns_the_old_file_into_the_new(tmp_path: Path, before: str, after: str) -> None:
    check_that_git_applies_it(tmp_path, before, after)


def check_that_git_applies_it(tmp_path: Path, before: str, after: str) -> None:
    made = diff(before, after, "f")
    path = tmp_path / "f"
    path.write_text(before)
    if before == after:
        assert made == ("", 0, 0, ())
        return
    command = ["git", "apply", "--unidiff-zero", "--whitespace=nowarn", "-p0", "-"]
    done = subprocess.run(command, input=made.text, text=True, cwd=tmp_path, capture_output=True, check=False)
    if before and after:  # an empty file is one that git would rather create or delete
        assert done.returncode == 0, done.stderr
        assert path.read_text() == after
    assert made.added - made.removed == after.count("\n") - before.count("\n")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None)
@given(TEXTS, TEXTS)
def test_a_diff_that_would_take_too_long_is_a_whole_block_and_as_true(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: str, after: str
) -> None:
    monkeypatch.setattr(diffs, "MAX_STEPS", 0)
    check_that_git_applies_it(tmp_path, before, after)


@pytest.mark.slow
@pytest.mark.timeout(30)
def test_texts_that_are_made_to_be_slow_are_compared_in_seconds() -> None:
    lines = random.Random(1)
    many = [f"{lines.randrange(150)}\n" for _ in range(9_900)]
    cycle = [f"{i % 200}\n" for i in range(9_900)]
    for text in (many, cycle):
        made = diff("".join(text), "".join(reversed(text)), "f")
        assert made.added == made.removed > 9_000
    assert diff("a\n" * 5_000_000, "b\n" * 5_000_000, "f").counts == "+5000000 -5000000"
    assert diff("a" * 10_000_000, "a" * 9_999_999 + "b", "f").counts == "+1 -1"


@pytest.mark.parametrize(("count", "width"), [(5_000, 100), (50_000, 1), (50_000, 20)])
def test_a_long_diff_is_cut_at_a_line_and_says_so(count: int, width: int) -> None:
    made = diff("", "".join(f"line {i:>{width}}\n" for i in range(count)), "f")
    assert len(made.text) <= MAX_DIFF_CHARS + len("(cut: 50000 more lines)\n")
    shown = made.text.count("\n+line")
    assert made.text.endswith(f"\n(cut: {count - shown} more lines)\n")
    assert made.added == count


def test_what_people_approve_is_whole_up_to_a_size_that_nobody_reads() -> None:
    made = diff("", "".join(f"line {i}\n" for i in range(15_000)), "f")
    assert made.text.count("\n+line") == made.added == 15_000
    assert cut_diff(made.text, 20_000).endswith("more lines)\n")


def test_a_change_in_a_file_of_100_000_lines_costs_only_the_change() -> None:
    lines = [f"line {i}\n" for i in range(100_000)]
    before = "".join(lines)
    lines[70_000] = "changed\n"
    made = diff(before, "".join(lines), "f")
    assert (made.added, made.removed) == (1, 1)
    assert "@@ -69998,7 +69998,7 @@" in made.text


def test_only_what_ends_a_line_for_an_editor_ends_one() -> None:
    shown = diff("one\x0c\u2028\x85\nsame\r\n", "two\x0c\u2028\x85\nsame\r\n", "file")
    assert (shown.added, shown.removed) == (1, 1)
    assert "@@ -1,2 +1,2 @@" in shown.text


def test_a_carriage_return_alone_ends_no_line_and_is_kept() -> None:
    assert "+# harmless \rtouch x\n" in diff("", "# harmless \rtouch x\n", "file").text
