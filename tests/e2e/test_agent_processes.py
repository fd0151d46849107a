"""What the agent starts may read from its server, and rule nothing there (P16); a person's own command may."""

from __future__ import annotations

import json
import os
import shlex
import signal
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from kedge.server.routes import ROUTES
from tests.e2e.home import Home
from tests.server.client import Client, done
from tests.server.process import Server
from tests.server.route_examples import GETTING, body_of, path_of
from tests.support.model_control import ModelControl, model_thread

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux says which process connects")

# Asks what `asked` lists and writes into `told` what came of it. "daemon": forked twice, in a session of its own.
# "handed on": the process that connects has ended before the server can look at it, and its child does the asking.
PROBE = """
import json, os, socket, sys

def connection():
    sock = socket.socket(socket.AF_UNIX)
    sock.settimeout(30)
    sock.connect(sys.argv[1])
    return sock

def ask(method, path, body, sock=None):
    data = b"" if body is None else json.dumps(body).encode()
    head = f"{method} {path} HTTP/1.1\\r\\nHost: localhost\\r\\nConnection: close\\r\\n"
    head += "Content-Type: application/json\\r\\n"
    with sock or connection() as sock:
        sock.sendall(f"{head}Content-Length: {len(data)}\\r\\n\\r\\n".encode() + data)
        answer = sock.recv(12)  # a stream has no end
        while answer.startswith(b"HTTP/1.1 4") and (more := sock.recv(65536)):
            answer += more
    return [method, path, int(answer[9:12]), "agent_process" if b'"code":"agent_process"' in answer else ""]

def fork_and_end():
    if os.fork(): os._exit(0)

how = sys.argv[2:]
if "daemon" in how:
    fork_and_end()
    os.setsid()
    fork_and_end()
asked = json.load(open("asked"))
sock = None
if "handed" in how:
    open("ready", "w").write("ready")
    open("go").read()
    reading, writing = os.pipe()
    sock = connection()
    if os.fork(): os._exit(0)
    os.close(writing)
    os.read(reading, 1)  # ends when the parent has
    open("ready", "w").write("connected")
told = [ask(*each, sock) for each in asked]
with open("told", "w") as file: json.dump(told, file)
"""


@pytest.fixture(scope="module")
def models() -> Generator[ModelControl]:
    with model_thread() as models:
        models.on({"text": "inner answer"}, prompt="an inner prompt")
        models.on(
            {"text": "", "tool_calls": [{"name": "bash", "input": {"command": "sh ./work.sh"}}]},
            {"text": "done"},
            prompt="run it",
        )
        yield models


class Work:
    """A workspace with the probe in it, which an agent runs."""

    def __init__(self, home: Home) -> None:
        self.directory = home.directory / "work"
        self.directory.mkdir()
        (self.directory / "probe.py").write_text(PROBE)
        for fifo in ("told", "ready", "go"):
            os.mkfifo(self.directory / fifo)
        self.server: Server = home.serve()
        self.client: Client = self.server.client
        self.workspace = self.client.workspace(self.directory)
        self.session_id = self.client.session(self.workspace, "named")
        self.run_id = ""

    def probe(self, *how: str, wrapper: str = "") -> str:
        words = [*shlex.split(wrapper), sys.executable, "probe.py", self.server.unix.path, *how]
        return shlex.join(words)

    def asks(self, *requests: tuple[str, str, Any]) -> None:
        (self.directory / "asked").write_text(json.dumps(requests))

    def agent_runs(self, script: str) -> None:
        """Keeps the command alive for as long as a daemon of it needs."""
        (self.directory / "work.sh").write_text(f"{script}\nsleep 60\n")
        self.run_id = self.client.submit(self.workspace, self.session_id, "run it", permissions="allow")

    def told(self) -> list[tuple[str, str, int, str]]:
        return [tuple(each) for each in json.loads((self.directory / "told").read_text())]

    def cancel(self) -> None:
        done(self.client.post(f"{self.workspace}/runs/{self.run_id}/cancel"))
        self.client.ended(self.workspace, self.run_id)

    def changes(self) -> list[tuple[str, str, Any]]:
        """Every route that is not GET, with a request that would be taken."""
        ids = {"workspace_id": self.workspace.rpartition("/")[2], "session_id": self.session_id, "run_id": "r"}
        ids |= {"SESSION": self.session_id}
        return [(row.method, path_of(row, **ids), body_of(row, **ids)) for row in ROUTES if row.method != "GET"]

    def reads(self) -> list[tuple[str, str, Any]]:
        ids = {"workspace_id": self.workspace.rpartition("/")[2], "session_id": self.session_id, "run_id": self.run_id}
        rows = [row for row in ROUTES if row in [each.values[0] for each in GETTING]]
        return [("GET", path_of(row, **ids), None) for row in rows]


@pytest.fixture
def work(home: Home) -> Generator[Work]:
    work = Work(home)
    yield work
    if work.run_id:
        work.cancel()
    assert work.server.stop() == 0


WAYS = {
    "a plain child": ("", ()),
    "in a session of its own": ("setsid -w", ()),
    "without its environment": ("env -i", ()),
    "as a daemon": ("", ("daemon",)),
    "as a daemon without its environment": ("env -i setsid", ("daemon",)),
}


@pytest.mark.parametrize("way", WAYS)
def test_whatever_the_agent_starts_is_refused_every_change(work: Work, way: str) -> None:
    wrapper, how = WAYS[way]
    changes = work.changes()
    work.asks(*changes)
    work.agent_runs(work.probe(*how, wrapper=wrapper))
    assert work.told() == [(method, path, 403, "agent_process") for method, path, _ in changes]
    assert done(work.client.get(f"{work.workspace}/permissions/skip")) == {"skip": False}
    assert done(work.client.get("/v1/health")) == {"status": "ok"}


def test_it_may_read_all_that_there_is(work: Work) -> None:
    work.asks()
    work.agent_runs(f"{work.probe()}\n{work.probe()}")
    assert work.told() == []
    work.asks(*(reads := work.reads()))
    assert work.told() == [("GET", path, 200, "") for _, path, _ in reads]


def test_a_process_that_is_gone_before_the_server_could_look_is_refused(work: Work) -> None:
    work.asks(("POST", "/v1/control", {"command": "shutdown"}))
    work.agent_runs(work.probe("handed"))
    assert (work.directory / "ready").read_text() == "ready"
    work.server.signal(signal.SIGSTOP)
    try:
        (work.directory / "go").write_text("go")
        assert (work.directory / "ready").read_text() == "connected"
    finally:
        work.server.signal(signal.SIGCONT)
    assert work.told() == [("POST", "/v1/control", 403, "agent_process")]


def test_a_persons_own_command_and_its_children_may_change_things(work: Work) -> None:
    asked = ("POST", f"{work.workspace}/sessions", {"title": "by hand"})
    work.asks(asked)
    command = f"sh -c {shlex.quote(work.probe(wrapper='env -i'))}"
    sent = work.client.post(f"{work.workspace}/agent/sessions/{work.session_id}/shell", {"command": command})
    assert work.told() == [(*asked[:2], 200, "")]
    run = work.client.ended(work.workspace, done(sent, 202)["run_id"])
    assert run["state"] == "completed"


def test_while_a_person_runs_a_command_that_of_the_agent_is_refused_still(work: Work) -> None:
    other = work.client.session(work.workspace, "other")
    sent = work.client.post(
        f"{work.workspace}/agent/sessions/{other}/shell", {"command": "echo $KEDGE_PROCESS > ready; sleep 60"}
    )
    mark = (work.directory / "ready").read_text().strip()
    assert mark
    work.asks(asked := ("POST", f"{work.workspace}/sessions", {"title": "x"}))
    work.agent_runs(work.probe(wrapper=f"env KEDGE_PROCESS={mark}"))  # a mark can be copied
    assert work.told() == [(*asked[:2], 403, "agent_process")]
    done(work.client.post(f"{work.workspace}/runs/{done(sent, 202)['run_id']}/cancel"))


def test_the_command_line_says_what_to_do(work: Work) -> None:
    work.agent_runs(f"{sys.executable} -m kedge run hello > told 2>&1; echo $? > ready")
    assert (work.directory / "told").read_text() == (
        "kedge: Commands started by the agent may only read from the server. Run this in a terminal of your own, "
        "or type ! before it in kedge.\n"
    )
    assert (work.directory / "ready").read_text() == "2\n"


def test_a_server_of_its_own_obeys_it(work: Work, tmp_path: Path) -> None:
    """It descends from our server too; but it did not start its client."""
    places = f"KEDGE_DATA_DIR={tmp_path}/data XDG_RUNTIME_DIR={tmp_path}"
    kedge = f"{places} {sys.executable} -m kedge"
    work.agent_runs(f"{kedge} run -q 'an inner prompt' > told 2>&1; {kedge} serve --stop > ready 2>&1")
    assert (work.directory / "told").read_text() == "inner answer\n"
    assert "has stopped" in (work.directory / "ready").read_text()
