"""Arguments, commands and files in a text: each placeholder has its value, and no argument becomes shell."""

from __future__ import annotations

import shlex
import subprocess
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kedge.skills.template import Filled, Mention, Run, fill


def text_of(filled: Filled) -> str:
    return filled.join(lambda piece: f"<{piece.line if isinstance(piece, Run) else piece.path}>")


@pytest.mark.parametrize(
    ("body", "arguments", "text"),
    [
        ("Fix $ARGUMENTS now", "a b", "Fix a b now"),
        ("Fix ${ARGUMENTS}", "a b", "Fix a b"),
        ("$1 then $2 then $3.", "one 'two words'", "one then two words then ."),
        ("$0 then $1", "one two", "one then two"),
        ("$ARGUMENTS[0] and $ARGUMENTS[1]", "one two", "one and two"),
        ("It costs \\$1: $1", "x", "It costs $1: x"),
        ("No placeholder", "the rest", "No placeholder\n\nthe rest"),
        ("No placeholder", "", "No placeholder"),
        ("awk '{print $1}' of $ARGUMENTS", None, "awk '{print $1}' of"),
        ("In ${KEDGE_SKILL_DIR}/x and ${HOME}", "", "In /skill/x and ${HOME}"),
        ("Run !`git log $1`", "main", "Run <git log main>"),
        ("See @src/a.py. And (@b.txt), me@example.org", "", "See <src/a.py>. And (<b.txt>), me@example.org"),
        ("See @$1", "a.py", "See <a.py>"),
        ("```!\n./run.sh $1\n```", "x", "<./run.sh x>"),
        ("```\n!`rm x` @file\n```\nand `!x`", "", "```\n!`rm x` @file\n```\nand `!x`"),
        ("$ARGUMENTS", "!`touch x` @file $1", "!`touch x` @file $1"),
        ("$1", "'unclosed quote", "'unclosed"),
    ],
)
def test_a_text_is_filled_in(body: str, arguments: str | None, text: str) -> None:
    assert text_of(fill(body, arguments, {"KEDGE_SKILL_DIR": "/skill"}, with_files=True)) == text


def test_the_text_of_a_skill_names_no_files_to_insert() -> None:
    filled = fill("Ask @someone", "", {}, with_files=False)
    assert not [piece for piece in filled.pieces if isinstance(piece, Mention)]


@given(st.text(st.characters(exclude_characters="\0\n\r", exclude_categories=["Cs"]), min_size=1, max_size=30))
@settings(max_examples=150, deadline=None)
def test_an_argument_in_a_command_is_one_word_whatever_it_contains(word: str) -> None:
    arguments = "'" + word.replace("'", "'\\''") + "'"
    for template in ("printf '[%s]' $1", 'printf "[%s]" "$1"', "printf '[%s]' \"a $1 b\"", "printf '[$1]'"):
        filled = fill(f"!`{template}`", arguments, {}, with_files=False)
        (piece,) = filled.pieces[:1]
        assert isinstance(piece, Run)
        if piece.problem or word.strip() != word or "%" in word or "\\" in word:
            continue
        done = subprocess.run(["bash", "-c", piece.line], capture_output=True, check=False)
        assert done.returncode == 0, (piece.line, done.stderr)
        assert word in done.stdout.decode()
        assert done.stdout.startswith(b"[")
        assert done.stdout.endswith(b"]")


@pytest.mark.parametrize(
    "text",
    [
        "```!\n# don't\necho $1\n```",
        "!`echo $'it\\'s' $1`",
        "!`bash -c 'echo $1'`",
        '!`sh -e -lc "echo $1"`',
        "!`eval echo $1`",
        "!`echo it\\'s $1`",
        '!`echo $"it\'s" $1`',
        "```!\ncat <<X\n$1\nX\n```",
        "!`echo $1$2 '$1' \"${1}\"$ARGUMENTS`",
    ],
)
@pytest.mark.parametrize("argument", ["; touch x", "'; touch x #", '"; touch x #', "$(touch x)", "`touch x`", "\\"])
def test_no_argument_becomes_shell_wherever_the_text_has_it(text: str, argument: str, tmp_path: Path) -> None:
    for arguments in (argument, shlex.quote(argument)):
        for line in fill(text, arguments, {}, with_files=False).commands:
            subprocess.run(["bash", "-c", line], cwd=tmp_path, capture_output=True, check=False)
    assert not list(tmp_path.iterdir())


def test_an_argument_that_cannot_be_quoted_keeps_its_command_from_running() -> None:
    filled = fill('!`echo "$(git show $1)"` and !`echo "$(git show main)"`', "'a; rm x'", {}, with_files=False)
    assert filled.commands == ['echo "$(git show main)"']


@pytest.mark.parametrize(
    "unit", ["$ARGUMENTS ", "!`", "@", "```!\n", "```\n", "$1", "\\$", "${A", "!`sh -a $1 ", "sh "]
)
def test_the_time_is_bounded(unit: str) -> None:
    began = time.perf_counter()
    fill(unit * (200_000 // len(unit)), "a b", {}, with_files=True)
    assert time.perf_counter() - began < 5
