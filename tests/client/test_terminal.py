"""`kedge run` on a terminal: live text, and a spinner that is gone before the first byte of the answer."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
from pathlib import Path

import pytest

from tests.client.command import Kedge, finish

CLEAR = b"\r\x1b[K"


def on_a_terminal(kedge: Kedge, *args: str, shares_output: bool = True, env: dict[str, str] | None = None) -> bytes:
    """Everything that appeared on a terminal; without `shares_output` standard output is a pipe."""
    controller, terminal = pty.openpty()
    env = {"TERM": "xterm", "PYTHONIOENCODING": "utf-8", **(env or {})}
    stdout = terminal if shares_output else subprocess.PIPE
    process = kedge.start("run", *args, stdin=terminal, stdout=stdout, stderr=terminal, env=env)
    os.close(terminal)
    shown = b""
    try:
        while piece := os.read(controller, 65536):
            shown += piece
    except OSError:
        pass  # how Linux says that the last one has closed the terminal
    os.close(controller)
    assert finish(process).code == 0
    return shown


def test_the_spinner_says_what_is_done_and_is_gone_before_the_answer(kedge: Kedge) -> None:
    shown = on_a_terminal(kedge, "sleep 0.7; say the answer")
    moving, _, answer = shown.rpartition(CLEAR)
    assert b"thinking" in moving
    assert answer.startswith(b"the answer\r\n")
    assert re.fullmatch(
        rb"kedge: \d+\.\d s, \d+ tokens in, \d+ out, session \w+\r\n", answer.removeprefix(b"the answer\r\n")
    )


def test_quiet_shows_the_answer_alone(kedge: Kedge) -> None:
    assert on_a_terminal(kedge, "-q", "sleep 0.5; say the answer") == b"the answer\r\n"


def test_markdown_is_drawn_on_a_terminal_and_raw_otherwise(kedge: Kedge) -> None:
    said = "say a **bold** word"
    assert on_a_terminal(kedge, "-q", said) == b"a \x1b[1mbold\x1b[0m word\r\n"
    assert on_a_terminal(kedge, "-q", "--no-stream", said) == b"a \x1b[1mbold\x1b[0m word\r\n"
    exact = b"a **bold** word\r\n"
    assert on_a_terminal(kedge, "-q", "--raw", said) == exact
    assert on_a_terminal(kedge, "-q", said, env={"NO_COLOR": "1"}) == exact
    assert on_a_terminal(kedge, "-q", said, env={"TERM": "dumb"}) == exact
    assert kedge.run("-q", said).out == "a **bold** word\n"
    drawn = on_a_terminal(kedge, "-q", "say one **two; say *three*")
    assert drawn == b"one **two\r\n\r\n\x1b[3mthree\x1b[0m\r\n", "each message begins with nothing open"


def test_a_canceled_run_says_so_on_a_terminal(kedge: Kedge) -> None:
    controller, terminal = pty.openpty()
    env = {"TERM": "xterm-256color"}
    process = kedge.start("run", "--run-id", "stopped", "wait", stdout=terminal, stderr=terminal, env=env)
    os.close(terminal)
    shown = b""
    while b"thinking" not in shown:
        shown += os.read(controller, 65536)
    process.send_signal(signal.SIGINT)
    try:
        while piece := os.read(controller, 65536):
            shown += piece
    except OSError:
        pass  # the last one has closed the terminal
    os.close(controller)
    assert finish(process).code == 130
    assert b"Canceled" in shown


def test_a_dumb_terminal_shows_nothing_that_moves(kedge: Kedge) -> None:
    shown = on_a_terminal(kedge, "sleep 0.5; say the answer", env={"TERM": "dumb"})
    assert b"\x1b" not in shown


def test_a_terminal_gets_every_message_and_no_stream_gets_the_answer(kedge: Kedge) -> None:
    assert on_a_terminal(kedge, "-q", "say one; say two") == b"one\r\n\r\ntwo\r\n"
    assert on_a_terminal(kedge, "-q", "--no-stream", "say one; say two") == b"two\r\n"


def test_with_the_answer_in_a_pipe_the_terminal_has_the_rest(kedge: Kedge) -> None:
    shown = on_a_terminal(kedge, "say one; sleep 0.5; say two", shares_output=False)
    assert b"one\r\n" in shown
    assert b"two" not in shown
    assert b"tokens in" in shown


def test_between_messages_the_spinner_is_back_on_a_line_of_its_own(kedge: Kedge, tmp_path: Path) -> None:
    shown = on_a_terminal(kedge, "say one; process sleep 0.6; say two")
    assert re.search(rb"one\r\n(\r\x1b\[K)?process sleep 0.6\r\n\r\x1b\[K.* running process \d+ s", shown)
    assert re.search(rb"\r\x1b\[K\r\ntwo\r\n", shown)


def test_while_the_model_thinks_about_a_result_the_spinner_says_so(kedge: Kedge) -> None:
    shown = on_a_terminal(kedge, "process true; sleep 0.7; say two")
    after = shown.partition(b"process true\r\n")[2].partition(b"two\r\n")[0]
    assert b"thinking" in after
    assert b"running" not in after.rpartition(b"thinking")[2]


@pytest.mark.parametrize("frames", [("utf-8", "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏".encode()), ("ascii", b"|/-\\")])
def test_the_spinner_uses_what_the_terminal_can_show(kedge: Kedge, frames: tuple[str, bytes]) -> None:
    encoding, shapes = frames
    shown = on_a_terminal(kedge, "sleep 0.5; say x", env={"PYTHONIOENCODING": encoding})
    assert re.search(rb"\x1b\[K([^ ]+) thinking", shown)
    found = re.findall(rb"\x1b\[K([^ ]+) thinking", shown)
    assert all(shape in shapes for shape in found)


def test_calls_are_shown_on_a_terminal_one_line_each(kedge: Kedge) -> None:
    shown = on_a_terminal(kedge, "say first; tool ls some files; tool view one; say done")
    lines = [line for line in re.sub(rb"\r\x1b\[K[^\r]*(?=\r\x1b\[K)|\r\x1b\[K", b"", shown).split(b"\r\n") if line]
    assert lines[:4] == [b"first", b"ls ls some files", b"view view one", b"done"]
    assert b"ls some files" not in on_a_terminal(kedge, "-q", "tool ls some files; say done")


def test_what_a_model_says_does_not_drive_the_terminal_and_is_exact_in_a_pipe(kedge: Kedge) -> None:
    said = "one \x1b]0title\x07 \x9b2J \N{FAMILY}\u200d\t."
    shown = on_a_terminal(kedge, "-q", f"say {said}")
    assert shown.decode() == "one ␛]0title␇ \\x9b2J \N{FAMILY}\u200d\t.\r\n"
    assert kedge.run("-q", f"say {said}").out == f"{said}\n"
    shown = on_a_terminal(kedge, f"say {said}; say two", shares_output=False)
    assert b"title" in shown
    assert b"\x1b]" not in shown
