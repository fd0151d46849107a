"""A server that stands still for a while, as under a debugger, is the same server afterwards; no second one starts."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from tests.client.command import Kedge, finish, read_until
from tests.e2e.home import Home, asking, log_of
from tests.server.client import Client as Plain
from tests.server.client import unix
from tests.support.invariants import check_all_ended, check_log, runs_of
from tests.support.model_control import ModelControl

STOPPED_S = (
    15.0  # longer than a heartbeat and the time for a connection, shorter than the silence that counts as a drop
)


@pytest.mark.timeout(120)
def test_a_server_that_was_stopped_goes_on_with_its_runs(
    home: Home, models: ModelControl, gate: str, tmp_path: Path
) -> None:
    kedge = Kedge(home, tmp_path)
    running = kedge.start("run", asking(chunks=5, gate=gate, gate_after=2), "--stream", "-q", "--run-id", "a")
    said = read_until(running.stdout, b"w1 ")
    owner = kedge.server_pid()
    assert owner is not None
    os.kill(owner, signal.SIGSTOP)
    try:
        models.release(gate)
        newcomers = [
            kedge.start("run", "-q", "--run-id", f"b{n}", asking(text=f"newcomer {n}"), *["-C"] * (n % 2))
            for n in range(4)
        ]
        time.sleep(STOPPED_S)
        assert [process.poll() for process in (running, *newcomers)] == [None] * 5, "they wait"
    finally:
        os.kill(owner, signal.SIGCONT)
    ended = finish(running)
    assert (ended.code, said.decode() + ended.out, ended.err) == (0, "w0 w1 w2 w3 FAKE-ANSWER-OK\n", "")
    ends = [finish(process) for process in newcomers]
    assert [(end.code, end.out, end.err) for end in ends] == [(0, f"newcomer {n}\n", "") for n in range(4)]
    assert kedge.server_pid() == owner
    assert home.log.count("listening on") == 1
    plain = Plain(unix(home.socket_path))
    log = log_of(plain, plain.workspace(tmp_path))
    check_log(log)
    check_all_ended(log)
    assert runs_of(log) == {"a", "b0", "b1", "b2", "b3"}
