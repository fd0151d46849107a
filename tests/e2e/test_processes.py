"""Whatever a model starts: on a real server, a daemon that holds a port and hears no signal (P6, P13, P15)."""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.home import Home
from tests.server.client import Client, done
from tests.server.process import Server
from tests.support.model_control import ModelControl, model_thread
from tests.support.processes import is_alive

# Forked twice, in a session of its own, its output given up, deaf to SIGTERM. It tells its number and its port.
DAEMON = """
import os, signal, socket
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork(): os._exit(0)
os.setsid()
if os.fork(): os._exit(0)
held = socket.create_server(("127.0.0.1", 0))
null = os.open(os.devnull, os.O_RDWR)
for fd in (0, 1, 2): os.dup2(null, fd)
with open("told", "w") as told: told.write(f"{os.getpid()} {held.getsockname()[1]}")
signal.pause()
"""

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux shows the mark of a daemon")


@pytest.fixture(scope="module")
def models() -> Generator[ModelControl]:
    with model_thread() as models:
        models.on(_bash("python3 daemon.py; sleep 300"), prompt="wait for it")
        models.on(_bash("python3 daemon.py"), {"text": "It is up."}, prompt="leave it")
        models.on(
            _bash('exec python3 -c \'import signal; open("told", "w").write("up"); signal.pause()\'', background=True),
            {"text": "It works."},
            prompt="a job",
        )
        yield models


def _bash(command: str, *, background: bool = False) -> dict[str, Any]:
    call = {"name": "bash", "input": {"command": command, "run_in_background": background}}
    return {"text": "", "tool_calls": [call]}


class Work:
    """A directory with a daemon in it, whose word can be waited for."""

    def __init__(self, home: Home) -> None:
        self.home = home
        self.directory = home.directory / "work"
        self.directory.mkdir()
        (self.directory / "daemon.py").write_text(DAEMON)
        os.mkfifo(self.directory / "told")
        self.server = self.serve()
        self.workspace = self.client.workspace(self.directory)

    def serve(self) -> Server:
        return self.home.serve()

    @property
    def client(self) -> Client:
        return self.server.client

    def submit(self, prompt: str) -> str:
        session_id = self.client.session(self.workspace, "named")
        self.client.submit(self.workspace, session_id, prompt, run_id="r", permissions="allow")
        return session_id

    def told(self) -> tuple[int, int]:
        pid, port = map(int, (self.directory / "told").read_text().split())
        assert is_alive(pid)
        assert not is_free(port)
        return pid, port

    def jobs(self) -> list[dict[str, Any]]:
        return done(self.client.get(f"{self.workspace}/jobs"))["jobs"]


@pytest.fixture
def work(home: Home) -> Work:
    return Work(home)


def is_free(port: int) -> bool:
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True


def test_a_cancel_leaves_no_port_in_use(work: Work) -> None:
    session_id = work.submit("wait for it")
    pid, port = work.told()
    done(work.client.post(f"{work.workspace}/agent/sessions/{session_id}/cancel"))
    assert work.client.ended(work.workspace, "r")["state"] == "cancelled"
    assert is_free(port)
    assert not is_alive(pid)
    assert work.server.stop() == 0


def test_the_next_server_ends_what_a_killed_one_left(work: Work) -> None:
    work.submit("wait for it")
    pid, port = work.told()
    work.server.signal(signal.SIGKILL)
    work.server.left()
    assert is_alive(pid)
    work.server = work.serve()
    assert is_free(port)
    assert not is_alive(pid)
    work.server.signal(signal.SIGTERM)
    assert work.server.stop() == 0


def test_a_daemon_that_is_left_running_is_a_job_and_ends_with_the_server(work: Work) -> None:
    work.submit("leave it")
    pid, port = work.told()
    assert work.client.ended(work.workspace, "r")["state"] == "completed"
    assert is_alive(pid)
    [job] = work.jobs()
    assert (job["command"], job["state"], job["exit_code"]) == ("python3 daemon.py", "running", 0)
    assert work.server.stop() == 0
    assert is_free(port)
    assert not is_alive(pid)


def test_a_job_outlives_its_run_and_is_ended_by_a_client(work: Work) -> None:
    work.submit("a job")
    assert (work.directory / "told").read_text() == "up"
    assert work.client.ended(work.workspace, "r")["state"] == "completed"
    [job] = work.jobs()
    assert job["state"] == "running"
    ended = done(work.client.post(f"{work.workspace}/jobs/{job['id']}/kill"))
    assert (ended["state"], ended["exit_code"]) == ("ended", -signal.SIGTERM)
    assert Path(ended["output_file"]).is_file()
    assert work.server.stop() == 0
