"""Server processes: exactly one is started, when needed, in place of a dead or older one; and waiting for its end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Generator, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from kedge.client import Client, server_process
from kedge.client.environment import find_server
from kedge.client.errors import SpawnFailed, Unreachable
from kedge.client.reconnect import Waiter
from kedge.client.sync_client import is_older
from kedge.protocol.address import OWNER_FILE
from kedge.version import VERSION
from tests.client.command import LIMIT_S, Kedge, finish
from tests.server.process import ROOT, Place

CONNECT = "from kedge.client import Client; Client.connect().close()"
# A server of an older version, with scripted turns.
OLDER = f"""
import sys; sys.path.insert(0, {str(ROOT)!r})
import kedge.version; kedge.version.VERSION = "0.0.9"
from unittest import mock
from kedge.cli.main import main
from tests.server.scripted import ScriptedAgent
with mock.patch("kedge.agent.agent.Agent", ScriptedAgent):
    sys.exit(main(["serve"]))
"""


@pytest.fixture
def kedge(place: Place, tmp_path: Path) -> Kedge:
    return Kedge(place, tmp_path)


def test_the_first_client_starts_a_server_and_the_next_one_uses_it(kedge: Kedge, here: Place, tmp_path: Path) -> None:
    with Client.connect(str(tmp_path)) as first:
        pid = kedge.server_pid()
        assert pid is not None
        assert os.getpgid(pid) == pid, "a session of its own: our terminal's signals do not reach it"
    with Client.connect(str(tmp_path)) as second:
        assert second.workspace == first.workspace
    assert kedge.server_pid() == pid
    assert here.log.count("listening on") == 1


def test_bytecode_of_an_installation_that_is_read_only_is_kept_in_the_data_directory(
    kedge: Kedge, here: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert server_process.__spec__ is not None
    monkeypatch.setattr(server_process.__spec__, "cached", str(tmp_path / "none.pyc"))

    def deny(_path: str, _mode: int) -> bool:
        return False

    monkeypatch.setattr(server_process.os, "access", deny)
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    Client.connect(str(tmp_path)).close()
    assert [path.name for path in (here.data_dir / "bytecode").rglob("kedge/server/serve.*.pyc")]


def test_a_stampede_starts_exactly_one_server(kedge: Kedge, place: Place, tmp_path: Path) -> None:
    counting = tmp_path / "counting"
    counting.write_text(f'#!/bin/sh\necho started >> {tmp_path}/starts\nexec {sys.executable} "$@"\n')
    counting.chmod(0o700)
    code = f"import sys; sys.executable = {str(counting)!r}; {CONNECT}"
    herd = [
        subprocess.Popen([sys.executable, "-c", code], cwd=kedge.workspace, env=place.env, stderr=subprocess.PIPE)
        for _ in range(20)
    ]
    ends = [finish(process) for process in herd]
    assert [end.err for end in ends if end.code or end.err] == []
    assert (tmp_path / "starts").read_text() == "started\n"
    assert place.log.count("listening on") == 1


def test_a_killed_server_leaves_a_stale_socket_that_heals(kedge: Kedge, here: Place, tmp_path: Path) -> None:
    with Client.connect(str(tmp_path)) as client:
        session = client.create_session("kept")
        killed = kedge.server_pid()
        assert killed is not None
        os.kill(killed, signal.SIGKILL)
        assert here.socket_path.exists()
        assert [found["id"] for found in client.sessions()] == [session["id"]], "the same client goes on"
    assert kedge.server_pid() not in (None, killed)


def test_a_client_that_waits_for_a_server_which_is_leaving_gets_the_next_one(
    kedge: Kedge, here: Place, tmp_path: Path
) -> None:
    with Client.connect(str(tmp_path)) as client:
        leaving = kedge.server_pid()
        assert leaving is not None
        os.kill(leaving, signal.SIGTERM)
        made: set[str] = set()
        while kedge.server_pid() in (None, leaving):
            made.add(client.create_session()["id"])
        assert made <= {session["id"] for session in client.sessions()}


def test_a_server_that_cannot_start_says_why(kedge: Kedge, place: Place) -> None:
    place.data_dir.mkdir()
    (place.data_dir / "kedge.db").write_bytes(b"this is no database" * 100)
    done = kedge.run("say x")
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert "kedge.db" in done.err


def test_a_data_directory_that_cannot_be_made_is_one_line(kedge: Kedge, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = kedge.run("say x", "--data-dir", str(tmp_path / "file"))
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert "--data-dir" in done.err


def test_a_server_that_dies_before_it_is_ready_points_to_its_log(
    here: Place, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    dying = tmp_path / "dying"
    dying.write_text("#!/bin/sh\necho last words >&2\nexit 1\n")
    dying.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(dying))
    with pytest.raises(SpawnFailed, match=r"server\.log"):
        Client.connect(str(tmp_path))
    assert here.log == "last words\n" * server_process.MAX_DEATHS


def test_a_server_that_says_why_it_cannot_start_is_not_started_again(
    here: Place, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    refusing = tmp_path / "refusing"
    refusing.write_text(
        "#!/bin/sh\necho a start >&2\nfor fd; do :; done\necho error: the disk is full >/dev/fd/$fd\nexit 2\n"
    )
    refusing.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(refusing))
    with pytest.raises(SpawnFailed, match="the disk is full"):
        Client.connect(str(tmp_path))
    assert here.log == "a start\n"


def test_a_server_that_was_killed_while_it_started_is_started_again(
    kedge: Kedge, here: Place, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fragile = tmp_path / "fragile"
    fragile.write_text(f'#!/bin/sh\nmkdir {tmp_path}/once && kill -9 $$\nexec {sys.executable} "$@"\n')
    fragile.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(fragile))
    Client.connect(str(tmp_path)).close()
    assert kedge.server_pid() is not None


def test_a_named_host_is_never_started(here: Place, tmp_path: Path) -> None:
    host = str(find_server().address)
    with pytest.raises(Unreachable, match="kedge serve"):
        Client.connect(str(tmp_path), host=host, give_up_s=0.2)
    assert not here.data_dir.exists()


def test_what_is_running_in_the_foreground_is_used(kedge: Kedge, place: Place) -> None:
    server = place.start()
    try:
        assert kedge.run("say from the foreground", "-q").out == "from the foreground\n"
        assert kedge.server_pid() == server.process.pid
    finally:
        assert server.stop() == 0


@pytest.fixture
def older(kedge: Kedge, place: Place) -> Generator[subprocess.Popen[bytes]]:
    """A server of an older version."""
    with subprocess.Popen(
        [sys.executable, "-c", OLDER],
        cwd=kedge.workspace,
        env=place.env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith(b"kedge: listening")
        yield process
        if process.poll() is None:
            process.terminate()
        process.wait(LIMIT_S)


def test_an_idle_server_of_an_older_version_is_replaced(
    kedge: Kedge, here: Place, older: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    with Client.connect(str(tmp_path)) as client:
        assert client.transport.server_version == VERSION
    assert older.wait(LIMIT_S) == 0
    assert kedge.server_pid() not in (None, older.pid)


def test_many_clients_replace_an_older_server_once(kedge: Kedge, place: Place, older: subprocess.Popen[bytes]) -> None:
    herd = [
        subprocess.Popen([sys.executable, "-c", CONNECT], cwd=kedge.workspace, env=place.env, stderr=subprocess.PIPE)
        for _ in range(8)
    ]
    assert [end.err for end in map(finish, herd) if end.code or end.err] == []
    assert older.wait(LIMIT_S) == 0
    assert place.log.count("listening on") == 2


def test_a_busy_server_of_an_older_version_is_used_as_it_is(
    kedge: Kedge, here: Place, older: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    with Client.connect(str(tmp_path), host=str(find_server().address)) as client:
        client.submit("hang", session_id=client.create_session()["id"], run_id="r")
        assert kedge.run("say hello", "-q").out == "hello\n"
        assert kedge.server_pid() == older.pid
        client.cancel(run_id="r")


@pytest.mark.parametrize(
    ("version", "is_it"),
    [("0.0.9", True), ("0.0.10", True), (VERSION, False), ("99.0.0", False), ("", False), (None, False)],
)
def test_versions_are_compared_by_their_numbers(version: str | None, is_it: bool) -> None:
    assert is_older(version) is is_it


def test_a_client_that_left_while_its_server_started_is_no_reason_for_a_second_one(
    kedge: Kedge, here: Place, tmp_path: Path
) -> None:
    class Leaving(Waiter):
        def wait(self, fd: int | None, timeout_s: float, *, to_write: bool = False) -> bool:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), server_process.hold_spawn_lock(str(here.data_dir)):
        server_process.launch_server(find_server(), Leaving())
    with Client.connect(str(tmp_path)):
        pass
    assert here.log.count("listening on") == 1


@pytest.fixture
def process(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as child:
        (tmp_path / OWNER_FILE).write_text(f"process {child.pid}\n")
        yield child


@pytest.mark.parametrize("has_pidfd", sorted({False, hasattr(os, "pidfd_open")}))
def test_the_end_of_the_owner_is_waited_for(
    has_pidfd: bool, process: subprocess.Popen[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not has_pidfd:
        monkeypatch.delattr(os, "pidfd_open", raising=False)
    with closing(server_process.OwnerProcess(str(tmp_path))) as owner:
        owner.wait_for_end(Waiter(), 0.01)
        assert process.poll() is None, "it did not end; only the time is over"
        assert process.stdin is not None
        waiting = threading.Thread(target=owner.wait_for_end, args=(Waiter(), LIMIT_S))
        waiting.start()
        process.stdin.close()
        assert process.wait(LIMIT_S) == 0
        waiting.join(LIMIT_S / 2)
        assert not waiting.is_alive()


@pytest.mark.parametrize(
    "owner", [None, "", "process", "process one", "process -1", "process 0", "somebody 12", "\xff"]
)
def test_an_owner_that_cannot_be_known_is_not_waited_for(owner: str | None, tmp_path: Path) -> None:
    if owner is not None:
        (tmp_path / OWNER_FILE).write_text(owner, encoding="latin-1")
    with closing(server_process.OwnerProcess(str(tmp_path))) as unknown:
        unknown.wait_for_end(Waiter(), 3600)
