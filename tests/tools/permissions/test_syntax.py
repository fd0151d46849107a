"""The parser within its bounds: text made to slow it down is not waited for, and threads do not meet in it."""

from __future__ import annotations

import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from kedge.tools.permissions.syntax import MAX_BYTES, MAX_OPERATORS, Unreadable, parse
from tests.tools.permissions.bench import Bench


@pytest.mark.parametrize(
    "token", [")", ">", "x=(a,b", "<<a ", "$(", "`", "{", "if ", "[[ ", "${a:-", '"$(', "((", "&&", "\\"]
)
def test_no_text_takes_long_to_read(token: str) -> None:
    started = time.process_time()
    parse(token * (MAX_BYTES // len(token)))
    for many in (MAX_OPERATORS, MAX_OPERATORS // 2, MAX_OPERATORS // 3):  # not refused for their number
        parse(token * min(many, MAX_BYTES // len(token)))
    assert time.process_time() - started < 5  # a tenth of it on a quiet machine


def nested_loops(body: str, names: str) -> str:
    values = " ".join(map(str, range(19)))
    for name in names:
        body = f"for {name} in {values}; do {body}; done"
    return body


@pytest.mark.parametrize(
    "command",
    [
        nested_loops("x=1", "abcdefgh"),
        nested_loops("sh -c '" + nested_loops('sh -c "ls"', "cd") + "'", "ab"),
    ],
)
def test_no_loop_takes_long_to_judge(bench: Bench, command: str) -> None:
    started = time.process_time()
    assert bench.says(bench.judge(), command) == "ask"
    assert time.process_time() - started < 5


@pytest.mark.parametrize("text", ["x" * (MAX_BYTES + 1), "(" * 1501, "\udc80", "a\0b", "a\x7fb", "a\u2028b"])
def test_what_is_out_of_bounds_is_not_read_at_all(text: str) -> None:
    assert isinstance(parse(text), Unreadable)


def test_commands_are_judged_side_by_side(bench: Bench) -> None:
    judge = bench.judge()
    commands = [f"echo {number}; cat a.txt | head -n {number}; rm -rf {number}" for number in range(50)] + ["ls"] * 50
    with ThreadPoolExecutor(8) as pool:
        said = list(pool.map(partial(bench.says, judge), commands))
    assert said == ["ask"] * 50 + ["allow"] * 50


def test_the_grammar_is_loaded_with_the_first_command_and_not_before() -> None:
    code = (
        "import sys, kedge.tools.permissions.judge\n"
        "assert 'tree_sitter' not in sys.modules\n"
        "from kedge.tools.permissions.syntax import parse\n"
        "parse('ls')\n"
        "assert 'tree_sitter' in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=30)
