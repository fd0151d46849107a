"""Standard input of `kedge run`: read when it is a pipe or a file, never waited for on a terminal."""

from __future__ import annotations

import os
import pty
import subprocess
from pathlib import Path

import pytest

from kedge.cli.run_input import join_prompt
from tests.client.command import Kedge, finish

IMPATIENT = "import kedge.cli.run_input as s; s.SILENT_S = 0.2"


@pytest.mark.parametrize(
    ("given", "prompt", "whole"),
    [
        ("context", "prompt", "context\n\nprompt"),
        ("context\n", "prompt", "context\n\nprompt"),
        ("context\n\n", "prompt", "context\n\n\nprompt"),
        ("", "prompt", "prompt"),
        (" \n", "prompt", "prompt"),
        ("context\n", "", "context\n"),
        ("context", "  ", "context"),
        ("context\n", "/review main", "/review main\n\ncontext\n"),
        ("context", "/etc/hosts is wrong", "context\n\n/etc/hosts is wrong"),
    ],
)
def test_standard_input_comes_before_the_prompt_with_a_blank_line_between(given: str, prompt: str, whole: str) -> None:
    assert join_prompt(prompt, given) == whole


def test_a_pipe_is_read_to_its_end(kedge: Kedge) -> None:
    assert kedge.run("say two", "-q", stdin=b"say one\n").out == "two\n"
    assert kedge.run("say two", "--stream", "-q", stdin=b"say one\n").out == "one\n\ntwo\n"
    assert kedge.run("-q", stdin=b"say one").out == "one\n"
    assert kedge.run("-", "-q", stdin=b"say one").out == "one\n"


def test_a_file_is_read(kedge: Kedge, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("say one")
    with (tmp_path / "file").open() as file:
        assert kedge.run("-q", stdin=file.fileno()).out == "one\n"


def test_no_stdin_leaves_it_alone(kedge: Kedge) -> None:
    assert kedge.run("say two", "--no-stdin", "--stream", "-q", stdin=b"say one").out == "two\n"


def test_what_is_not_text_is_replaced_and_mentioned(kedge: Kedge) -> None:
    done = kedge.run("-q", stdin=b"say a\xffb")
    assert (done.code, done.out) == (0, "a\ufffdb\n")
    assert "U+FFFD" in done.err


def test_a_pipe_that_stays_silent_beside_a_prompt_is_an_error_that_names_the_ways_out(kedge: Kedge) -> None:
    reading, writing = os.pipe()
    process = kedge.start("run", "say x", stdin=reading, before=IMPATIENT)
    os.close(reading)
    done = finish(process)
    os.close(writing)
    assert (done.code, done.out) == (2, "")
    assert all(way in done.err for way in ("</dev/null", "--no-stdin", "'-'"))
    assert done.err.count("\n") == 1


@pytest.mark.parametrize("args", [[], ["-", "say two"]])
def test_a_pipe_without_a_prompt_or_with_a_dash_is_waited_for(kedge: Kedge, args: list[str]) -> None:
    process = kedge.start("run", "-q", *args, stdin=subprocess.PIPE, before=IMPATIENT)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(1.0)
    out, _ = process.communicate(b"say one", timeout=30)
    assert out == (b"two\n" if args else b"one\n")


def test_a_terminal_is_never_waited_for(kedge: Kedge) -> None:
    controller, terminal = pty.openpty()
    try:
        assert kedge.run("say x", "-q", stdin=terminal).out == "x\n"
        assert kedge.run(stdin=terminal).code == 2
        insisted = kedge.run("-", stdin=terminal)
        assert (insisted.code, insisted.err.count("\n")) == (2, 1)
    finally:
        os.close(controller)
        os.close(terminal)
