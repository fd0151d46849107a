"""A server that is killed and comes back: `kedge run` prints what it would have printed, and its exit code is true."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from kedge.client import Client
from tests.client.command import Kedge, finish, read_until
from tests.server.process import Place, Server


@pytest.mark.parametrize("sig", [signal.SIGKILL, signal.SIGTERM])
@pytest.mark.parametrize(("args", "out"), [(["--stream"], "one two\n\nthree\n"), ([], "three\n")])
def test_a_run_goes_on_where_it_was_when_its_server_is_restarted(
    place: Place, tmp_path: Path, sig: signal.Signals, args: list[str], out: str
) -> None:
    kedge = Kedge(place, tmp_path)
    server = place.start()
    with Client.connect(str(tmp_path), host=str(server.unix)) as client:
        process = kedge.start(
            "run", "say one two; sleep 1; say three", "-q", *args, env={"KEDGE_HOST": str(server.unix)}
        )
        next(event for event in client.events(after=0) if "'finish'" in str(event))  # of the first message
    server.signal(sig)
    server.left()
    server = place.start()
    try:
        done = finish(process)
        assert (done.code, done.out, done.err) == (0, out, "")
    finally:
        assert server.stop() == 0


def test_a_run_that_ended_while_its_client_was_stopped_is_read_to_its_end(kedge: Kedge, server: Server) -> None:
    process = kedge.start("run", "say one; say two", "--stream", "--run-id", "r", "-q")
    process.send_signal(signal.SIGSTOP)
    with Client.connect(str(kedge.workspace), host=str(server.unix)) as client:
        process.send_signal(signal.SIGCONT)
        said = read_until(process.stdout, b"two\n")
        assert client.call("GET", "/runs/r?wait=30")["state"] == "completed"
    assert (said, finish(process).code) == (b"one\n\ntwo\n", 0)
