"""Nobody thinks about the server: the first `kedge run` starts it, however many come first; a newer one replaces it."""

from __future__ import annotations

import fcntl
import json
import time
from pathlib import Path

import pytest

from kedge.protocol.address import OWNER_FILE
from kedge.version import VERSION
from tests.client.command import LIMIT_S, Kedge, finish
from tests.e2e.home import Home, asking
from tests.server.client import done
from tests.server.process import Server
from tests.support.model_control import ModelControl


@pytest.fixture
def kedge(home: Home, tmp_path: Path) -> Kedge:
    return Kedge(home, tmp_path)


def test_twenty_runs_without_a_server_start_one_and_are_all_answered(kedge: Kedge, home: Home) -> None:
    herd = [kedge.start("run", asking(text=f"answer {number}"), "-q") for number in range(20)]
    ends = [finish(process) for process in herd]
    assert [(end.code, end.out, end.err) for end in ends] == [(0, f"answer {number}\n", "") for number in range(20)]
    assert home.log.count("\n") == 1, "the one line of one server"
    assert "listening on" in home.log


def test_a_second_server_on_the_same_data_directory_is_refused_and_the_first_goes_on(
    kedge: Kedge, home: Home, models: ModelControl, gate: str
) -> None:
    running = kedge.start("run", asking(gate=gate), "-q")
    models.wait(held=gate)
    owner = kedge.server_pid()
    second = home.popen("serve", module="kedge")
    out, err = second.communicate(timeout=30)
    assert (second.returncode, out, err.count("\n")) == (2, "", 1)
    assert f"process {owner}" in err
    assert kedge.server_pid() == owner
    models.release(gate)
    assert finish(running).out == "FAKE-ANSWER-OK\n"


def test_whoever_looks_at_the_lock_does_not_keep_the_first_server_from_starting(home: Home) -> None:
    """Clients look whether a data directory is free, and hold its lock for as long as that takes."""
    home.data_dir.mkdir()
    lock = home.data_dir / OWNER_FILE
    with lock.open("w") as looking:
        fcntl.flock(looking, fcntl.LOCK_SH)
        process = home.popen("serve", module="kedge")
        until = time.monotonic() + LIMIT_S
        while process.poll() is None and not has_open(process.pid, lock):
            assert time.monotonic() < until
            time.sleep(0.001)
    server = Server(home, process)
    assert server.stop() == 0


def has_open(pid: int, path: Path) -> bool:
    try:
        return any(fd.resolve() == path for fd in Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return False  # it is gone, or the descriptor is


@pytest.fixture
def older(home: Home) -> Server:
    server = home.serve(module="tests.e2e.older")
    assert done(server.client.get("/v1/version"))["version"] == "0.0.9"
    return server


def test_an_idle_server_of_an_older_version_makes_room_and_its_sessions_stay(kedge: Kedge, older: Server) -> None:
    kept = older.client.session(older.client.workspace(kedge.workspace))
    answered = kedge.run("-s", kept, asking(text="by the new one"), "-q")
    assert (answered.code, answered.out, answered.err) == (0, "by the new one\n", "")
    assert older.left() == 0
    assert kedge.server_pid() not in (None, older.process.pid)
    assert done(older.client.get("/v1/version"))["version"] == VERSION


def test_a_busy_server_of_an_older_version_is_used_as_it_is(
    kedge: Kedge, older: Server, models: ModelControl, gate: str
) -> None:
    client = older.client
    workspace = client.workspace(kedge.workspace)
    body = {"prompt": asking(gate=gate), "run_id": "busy"}
    client.submit(workspace, client.session(workspace), **body)
    models.wait(held=gate)
    answered = kedge.run(asking(text="by the old one"), "--json", "-q")
    assert (answered.code, answered.err) == (0, "")
    assert json.loads(answered.out.splitlines()[-1])["payload"]["payload"]["text"] == "by the old one"
    assert kedge.server_pid() == older.process.pid
    models.release(gate)
    assert client.ended(workspace, "busy")["state"] == "completed"
    assert older.stop() == 0
