"""Leaving `kedge run`: what cancels the run, and what leaves it going."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from kedge.client import Client
from tests.client.byteserver import ByteServer, chunked, json_answer, stream_head
from tests.client.command import LIMIT_S, Kedge, finish, read_until
from tests.client.timeline import LOG, control
from tests.server.process import Place, Server

WORKING = "say working; hang"
TELL_OF_READING = (
    "import os, kedge.cli.run as s; r = s.read_stdin; "
    "s.read_stdin = lambda *a, **k: (os.write(1, b'here'), r(*a, **k))[1]"
)
# The minute is over 0.3 s after the prompt was sent, however long it took to come that far.
TIME_UP_IN_SUBMIT = (
    "import kedge.cli.run as r; r.CANCEL_S = 0.3; s = r.InterruptibleFollower.submit; "
    "r.InterruptibleFollower.submit = lambda self: (self._console.extend_deadline(0.3), s(self))[1]"
)


@pytest.fixture
def client(server: Server, tmp_path: Path) -> Generator[Client]:
    with Client.connect(str(tmp_path), host=str(server.unix)) as client:
        yield client


def run_of(client: Client, run_id: str, wait: float = 0) -> dict[str, Any]:
    return client.call("GET", f"/runs/{run_id}?wait={wait}")


def started(kedge: Kedge, *args: str, script: str = WORKING, **options: Any) -> subprocess.Popen[bytes]:
    """A run that has begun to speak."""
    process = kedge.start("run", script, "--stream", "--run-id", "r", *args, **options)
    read_until(process.stdout, b"working")
    return process


@pytest.mark.parametrize(("sig", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_cancels_the_run_and_waits_for_its_end(
    kedge: Kedge, client: Client, sig: signal.Signals, code: int
) -> None:
    process = started(kedge, "-q")
    process.send_signal(sig)
    done = finish(process)
    assert (done.code, done.out.strip(), done.err) == (code, "", "")
    assert run_of(client, "r")["state"] == "cancelled"


def test_a_cancel_by_somebody_else_is_130_and_no_error(kedge: Kedge, client: Client) -> None:
    process = started(kedge, "-q")
    assert client.cancel(run_id="r") == ["r"]
    done = finish(process)
    assert (done.code, done.err) == (130, "")


def test_the_second_signal_leaves_at_once_and_the_cancel_stands(kedge: Kedge, client: Client) -> None:
    process = started(kedge, script="say working; stubborn 30")
    process.send_signal(signal.SIGINT)
    until = time.monotonic() + LIMIT_S
    while not run_of(client, "r")["cancel_requested"]:
        assert time.monotonic() < until
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    assert finish(process).code == 130
    assert run_of(client, "r", wait=30)["state"] == "cancelled"


def test_a_signal_before_the_prompt_was_sent_leaves_at_once(kedge: Kedge) -> None:
    reading, writing = os.pipe()
    process = kedge.start("run", "-", stdin=reading, before=TELL_OF_READING)
    read_until(process.stdout, b"here")
    os.close(reading)
    process.send_signal(signal.SIGINT)
    done = finish(process)
    os.close(writing)
    assert (done.code, done.out) == (130, "")


def test_a_timeout_cancels_the_run(kedge: Kedge, client: Client) -> None:
    done = kedge.run(WORKING, "--run-id", "r", "--timeout", "0.5", "-q")
    assert (done.code, done.out) == (124, "")
    assert "0.5 s" in done.err
    assert run_of(client, "r")["state"] == "cancelled"


def test_a_timeout_counts_while_the_server_cannot_be_reached(kedge: Kedge) -> None:
    done = kedge.run("say x", "--timeout", "0.3", "--host", "unix:///nowhere.sock")
    assert (done.code, done.out, done.err.count("\n")) == (124, "", 1)


def test_a_timeout_counts_while_the_server_does_not_answer(kedge: Kedge, place: Place) -> None:
    """It takes the prompt, perhaps, and says nothing more: neither to that, nor to the cancel."""

    def join_then_ignore(connection: socket.socket) -> None:
        for answer in ({"id": "w"}, {"id": "s"}):
            server.read_request(connection)
            connection.sendall(json_answer(answer))
        ignore(connection)

    def stream(connection: socket.socket) -> None:
        server.read_request(connection)
        frame = control("connected", {"log_id": LOG, "head": 0, "after": 0})
        connection.sendall(stream_head() + chunked(frame))
        server.read_request(connection)

    def ignore(connection: socket.socket) -> None:
        while server.read_request(connection):
            pass

    with ByteServer(place.runtime_dir / "s", join_then_ignore, stream, ignore) as server:
        args = ["run", "say x", "--timeout", "60", "--host", server.host]
        done = finish(kedge.start(*args, before=TIME_UP_IN_SUBMIT))
    run_id = json.loads(server.requests[3].partition(b"\r\n\r\n")[2])["run_id"]
    assert [request.split(b" ")[1] for request in server.requests] == [
        b"/v1/workspaces",
        b"/v1/workspaces/w/sessions",
        b"/v1/workspaces/w/events?session_id=s",
        b"/v1/workspaces/w/agent",
        f"/v1/workspaces/w/runs/{run_id}/cancel".encode(),
    ]
    assert (done.code, done.out, done.err.count("\n")) == (124, "", 1)


def test_a_run_that_is_done_in_time_is_not_touched_by_its_timeout(kedge: Kedge) -> None:
    assert kedge.run("say x", "--timeout", "25", "-q").code == 0


def gated(tmp_path: Path) -> tuple[str, Path]:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    return f"say working; process cat {gate}; say done", gate


def test_sighup_leaves_the_run_going(kedge: Kedge, client: Client, tmp_path: Path) -> None:
    script, gate = gated(tmp_path)
    process = started(kedge, script=script)
    process.send_signal(signal.SIGHUP)
    assert finish(process).code == -signal.SIGHUP
    gate.write_text("")
    assert run_of(client, "r", wait=30)["state"] == "completed"


def test_a_closed_standard_output_leaves_the_run_going(kedge: Kedge, client: Client, tmp_path: Path) -> None:
    script, gate = gated(tmp_path)
    reading, writing = os.pipe()
    process = kedge.start("run", script, "--stream", "--run-id", "r", "-q", stdout=writing)
    os.close(writing)
    assert os.read(reading, 100).strip() == b"working"
    os.close(reading)
    gate.write_text("")
    done = finish(process)
    assert (done.code, done.err) == (141, "")
    assert run_of(client, "r", wait=30)["state"] == "completed"


def test_a_reader_that_stalls_does_not_keep_a_signal_from_being_heard(kedge: Kedge, client: Client) -> None:
    long = "x" * 300_000  # more than a pipe holds
    process = kedge.start("run", "--stream", "--run-id", "r", stdin=subprocess.PIPE)
    assert process.stdin is not None
    process.stdin.write(f"say working {long}; hang".encode())
    process.stdin.close()
    process.stdin = None
    heard = read_until(process.stdout, b"working x")
    process.send_signal(signal.SIGINT)
    assert run_of(client, "r", wait=30)["state"] == "cancelled"
    done = finish(process)
    assert (done.code, heard.decode() + done.out) == (130, f"working {long}\n")


def test_a_background_job_of_a_shell_ignores_the_terminals_interrupt(kedge: Kedge, tmp_path: Path) -> None:
    script, gate = gated(tmp_path)
    ignoring = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)"
    process = started(kedge, "-q", script=script, before=ignoring)
    process.send_signal(signal.SIGINT)
    gate.write_text("")
    assert finish(process).code == 0
