"""The exit codes of section 5 of the contract: the same whatever standard input is, in a pipe and on a terminal."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import shlex
import signal
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path
from typing import NamedTuple

import pytest

from kedge.client import Client
from tests.client.command import LIMIT_S, Kedge, finish
from tests.e2e.home import asking
from tests.support.model_control import ModelControl
from tests.support.model_plan import AT_ONCE


class Case(NamedTuple):
    code: int
    args: list[str]
    out: str = ""
    err: str = ""  # has this in it
    signum: int | None = None  # sent when the model was asked


CASES = {
    "answered": Case(0, [asking()], "FAKE-ANSWER-OK\n"),
    "failed": Case(1, [asking(status=400)], err="127.0.0.1"),
    "failed on the way": Case(1, [asking(chunks=3, malformed="error", error="invalid_api_key")], err="provider"),
    "wrong usage": Case(2, ["x", "--frob"], err="'--frob'"),
    "unknown session": Case(2, ["x", "-s", "nowhere"], err="'nowhere'"),
    "no such model": Case(2, ["x", "-m", "nobody/knows"], err="'nobody'"),
    "no server": Case(3, ["x", "--host", "unix:///nowhere.sock", "--connect-timeout", "0.2"], err="unix:///no"),
    "busy": Case(4, ["x", "-s", "BUSY", "--on-busy", "reject"], err="busy with run busy"),
    "time is up": Case(124, [asking(hang_after=AT_ONCE), "--timeout", "0.5"], err="0.5 s"),
    "interrupted": Case(130, ["HELD"], signum=signal.SIGINT),
    "terminated": Case(143, ["HELD"], signum=signal.SIGTERM),
}
EMPTY = "say nothing"
STANDARD_INPUTS = ["closed", "at its end", "open and silent", "a file", "a terminal"]


@pytest.fixture
def busy(client: Client) -> Generator[str]:
    """A session with a run "busy"."""
    session_id = client.create_session()["id"]
    client.submit(asking(hang_after=AT_ONCE), session_id=session_id, run_id="busy")
    yield session_id
    client.cancel(session_id=session_id)


@contextlib.contextmanager
def standard_input(kind: str, directory: Path) -> Generator[tuple[int, list[str]]]:
    """A descriptor for it, and the arguments that one would give with it."""
    reading, writing = pty.openpty()[::-1] if kind == "a terminal" else os.pipe()
    if kind == "at its end":
        os.close(writing)
        writing = -1
    elif kind == "a file":
        os.close(reading)
        (directory / "empty").touch()
        reading = os.open(directory / "empty", os.O_RDONLY)
    try:
        yield reading, ["--no-stdin"] if kind == "open and silent" else []
    finally:
        os.close(reading)
        if writing >= 0:
            os.close(writing)


class Terminal:
    def __init__(self) -> None:
        self.controller, self.fd = pty.openpty()

    def shown(self) -> str:
        """All that appeared, once nobody else has the terminal open."""
        os.close(self.fd)
        shown = b""
        with contextlib.suppress(OSError), os.fdopen(self.controller, "rb", buffering=0) as controller:
            while piece := controller.read(65536):
                shown += piece
        return shown.decode().replace("\r\n", "\n")


def started(
    kedge: Kedge, args: list[str], stdin: int | None, terminal: Terminal | None = None
) -> subprocess.Popen[bytes]:
    """`kedge run`; without `stdin` that descriptor is closed."""
    command = shlex.join([sys.executable, "-m", "kedge", "run", "-q", *args])
    return subprocess.Popen(
        ["sh", "-c", f"exec {command}" if stdin is not None else f"exec {command} <&-"],
        cwd=kedge.workspace,
        env=kedge.place.env,
        stdin=subprocess.DEVNULL if stdin is None else stdin,
        stdout=terminal.fd if terminal else subprocess.PIPE,
        stderr=terminal.fd if terminal else subprocess.PIPE,
    )


@pytest.mark.parametrize("stdin", STANDARD_INPUTS)
@pytest.mark.parametrize("name", CASES)
def test_the_exit_code_is_true_whatever_standard_input_is(
    kedge: Kedge, models: ModelControl, busy: str, gate: str, tmp_path: Path, name: str, stdin: str
) -> None:
    case = CASES[name]
    with standard_input(stdin, tmp_path) as (fd, more):
        process = started(kedge, arguments(case, busy, gate) + more, None if stdin == "closed" else fd)
        send(process, case, models, gate)
        out, err = process.communicate(timeout=LIMIT_S)
    assert (process.returncode, out.decode()) == (case.code, case.out), err
    assert case.err in err.decode()
    assert err.count(b"\n") == (1 if case.err else 0), "one line that says what to do, or nothing at all"


@pytest.mark.parametrize("name", CASES)
def test_the_exit_code_is_true_on_a_terminal(
    kedge: Kedge, models: ModelControl, busy: str, gate: str, name: str
) -> None:
    case, terminal = CASES[name], Terminal()
    process = started(kedge, arguments(case, busy, gate), terminal.fd, terminal)
    send(process, case, models, gate)
    process.wait(LIMIT_S)
    shown = terminal.shown()
    assert process.returncode == case.code, shown
    assert shown.startswith(case.out)
    assert case.err in shown
    assert ("kedge:" in shown) == bool(case.err)


ENDS = {
    "answered": (0, [asking()]),
    "failed": (1, [asking(status=400)]),
    "empty twice": (1, [EMPTY]),
    "no such model": (2, ["x", "-m", "nobody/knows"]),
    "refused": (4, [asking(tool_calls=json.dumps([{"name": "bash", "input": {"command": "touch x"}}]))]),
    "cancelled": (130, ["HELD"]),
}


@pytest.mark.parametrize("name", ENDS)
def test_attach_ends_with_the_exit_code_of_run(kedge: Kedge, models: ModelControl, gate: str, name: str) -> None:
    code, args = ENDS[name]
    models.on({"text": ""}, {"text": ""}, prompt=EMPTY)
    models.on({"text": ""}, prompt="was empty")
    followed = kedge.start("run", "-q", "--run-id", "r", *arguments(Case(code, args), "", gate))
    if name == "cancelled":
        models.wait(held=gate)
        assert kedge("cancel", "r").code == 0
    run, attached = finish(followed), kedge("attach", "-q", "r")
    assert (run.code, attached.code, attached.out) == (code, code, run.out)
    # The options that would have allowed what was refused are those of `kedge run`.
    assert attached.err == run.err.replace("--allow 'bash(touch x)'", "kedge run --allow 'bash(touch x)'")
    assert attached.err.count("\n") == (1 if code in (1, 2, 4) else 0)


def arguments(case: Case, busy: str, gate: str) -> list[str]:
    held = asking(gate=gate)
    return [{"BUSY": busy, "HELD": held}.get(arg, arg) for arg in case.args]


def send(process: subprocess.Popen[bytes], case: Case, models: ModelControl, gate: str) -> None:
    if case.signum is not None:
        models.wait(held=gate)
        process.send_signal(case.signum)
