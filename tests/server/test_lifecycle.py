"""How a server begins, is found, and is told to stop: one for each data directory, and one line when it cannot be."""

from __future__ import annotations

import logging
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from kedge.cli import serve
from kedge.protocol.runs import RunEnd, Usage
from kedge.server.metrics import Metrics
from kedge.store.port import Committed
from tests.server.client import LIMIT_S, done
from tests.server.conftest import Start
from tests.server.process import ROOT, Place


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def stop(place: Place, *args: str, env: dict[str, str] | None = None) -> tuple[int, str, str]:
    """`kedge serve --stop`."""
    process = place.popen("serve", "--stop", *args, env=env, module="kedge")
    out, err = process.communicate(timeout=LIMIT_S)
    return process.returncode, out, err


def test_a_second_server_of_a_data_directory_is_refused_and_names_the_first(place: Place, start: Start) -> None:
    server = start()
    why = place.refused()
    assert f"{place.data_dir} is in use by process {server.process.pid}" in why
    assert server.client.get("/v1/health").status == 200


def test_two_data_directories_are_two_servers(place: Place, start: Start, tmp_path: Path) -> None:
    first = start()
    second = start("--data-dir", str(tmp_path / "other"))
    assert first.unix != second.unix
    assert first.client.workspace(tmp_path) != second.client.workspace(tmp_path)
    link = place.data_dir.with_name("link")
    link.symlink_to(place.data_dir)
    assert "is in use" in place.refused("--data-dir", str(link))  # by any name it is the same


def test_the_environment_names_host_and_data_directory(place: Place, start: Start, tmp_path: Path) -> None:
    path = place.runtime_dir / "named" / "x.sock"
    server = start(env={"KEDGE_HOST": f"unix://{path}", "KEDGE_DATA_DIR": str(tmp_path / "named")})
    assert server.unix.path == str(path)
    assert (tmp_path / "named" / "kedge.db").exists()
    code, out, _ = stop(place, env={"KEDGE_HOST": f"unix://{path}", "KEDGE_DATA_DIR": str(tmp_path / "named")})
    assert (code, server.left()) == (0, 0)
    assert str(path) in out


def test_whoever_started_it_is_told_through_a_pipe(place: Place, start: Start) -> None:
    def said(*args: str) -> tuple[subprocess.Popen[str], str]:
        reading, writing = os.pipe()
        process = place.popen("--detached", "--ready-fd", str(writing), *args, pass_fds=[writing])
        os.close(writing)
        with os.fdopen(reading) as pipe:
            return process, pipe.read()

    process, line = said()
    try:
        assert line == "ready\n"
        other, line = said()
        assert line.startswith(f"error: {place.data_dir} is in use by process {process.pid};")
        assert line.count("\n") == 1
        out, err = other.communicate(timeout=LIMIT_S)
        assert (other.returncode, out, err) == (2, "", "")
        code, out, _ = stop(place)
        assert (code, process.poll()) == (0, 0), "it is gone when that is said"
    finally:
        process.kill()
        assert process.communicate(timeout=LIMIT_S) == ("", "")
    del start


@pytest.mark.parametrize("directory", ["/dev/null/data", "/proc/kedge", "file"])
def test_a_data_directory_that_cannot_be_is_one_line(place: Place, tmp_path: Path, directory: str) -> None:
    (tmp_path / "file").write_text("")
    path = str(tmp_path / directory)
    assert path in place.refused("--data-dir", path)


@pytest.mark.skipif(os.getuid() == 0, reason="root can write everywhere")
def test_a_data_directory_that_cannot_be_written_is_one_line(place: Place) -> None:
    place.data_dir.mkdir(mode=0o500)
    assert str(place.data_dir) in place.refused()


def test_a_full_disk_at_the_start_is_one_line(place: Place) -> None:
    limited = ["sh", "-c", 'ulimit -f 0; exec "$@"', "sh", sys.executable, "-m", "tests.server.scripted"]
    result = subprocess.run(
        limited, cwd=ROOT, env=place.env, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith("kedge: ")
    assert result.stderr.count("\n") == 1


def test_wrong_usage_is_one_line(place: Place) -> None:
    assert "--frobnicate" in place.refused("--frobnicate")
    assert "KEDGE_IDLE_TIMEOUT 'soon'" in place.refused("--detached", env={"KEDGE_IDLE_TIMEOUT": "soon"})


@pytest.mark.parametrize(
    "argv", [["--idle-timeout", "x"], ["--idle-timeout", "-1"], ["--ready-fd", "x"], ["--host"], ["word"]]
)
def test_wrong_options_say_where_help_is(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert serve.run(argv) == 2
    err = capsys.readouterr().err
    assert err.startswith("kedge: ")
    assert "kedge serve --help" in err
    assert err.count("\n") == 1


def test_the_log_is_private_also_when_it_is_rotated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "LOG_BYTES", 1000)
    (tmp_path / "log").touch(mode=0o644)
    log = serve.PrivateLog(str(tmp_path / "log"))
    for number in range(100):
        log.emit(logging.makeLogRecord({"msg": f"line {number} \ud800 " + "x" * 90}))
    log.close()
    files = sorted(tmp_path.iterdir())
    assert [file.name for file in files] == ["log", "log.1", "log.2", "log.3"]
    assert {mode_of(file) for file in files} == {0o600}
    assert "line 99" in (tmp_path / "log").read_text()


def test_the_command_shuts_down(start: Start) -> None:
    server = start()
    assert done(server.client.post("/v1/control", {"command": "shutdown"})) == {"stopping": True}
    assert server.left() == 0


def test_a_busy_server_is_not_idle(start: Start, tmp_path: Path) -> None:
    server = start()
    client = server.client
    workspace = client.workspace(tmp_path)
    session_id = client.session(workspace)
    run_id = client.submit(workspace, session_id, "hang")
    answer = client.post("/v1/control", {"command": "shutdown_if_idle"})
    assert (answer.status, answer.code) == (409, "not_idle")
    assert done(client.get("/v1/health")) == {"status": "ok"}
    done(client.post(f"{workspace}/agent/sessions/{session_id}/cancel"))
    client.ended(workspace, run_id)
    while client.post("/v1/control", {"command": "shutdown_if_idle"}).status == 409:
        pass  # the session's actor leaves right after the end
    assert server.left() == 0


def test_stop_stops_and_waits_until_the_directory_is_free(place: Place, start: Start, tmp_path: Path) -> None:
    server = start("--host", "tcp://127.0.0.1:0")
    client = server.client
    workspace = client.workspace(tmp_path)
    run_id = client.submit(workspace, client.session(workspace), "sleep 0.5;say done")
    code, out, err = stop(place)
    assert (code, out, err) == (0, f"kedge: The server at {server.unix} has stopped.\n", "")
    assert server.process.wait(LIMIT_S) == 0
    assert start().client.ended(workspace, run_id)["state"] == "completed"


def test_stop_without_a_server_says_so(place: Place, start: Start) -> None:
    told = f"kedge: No server is running for {place.data_dir}.\n"
    assert stop(place) == (0, told, "")
    assert not place.data_dir.exists()
    start().kill()
    assert stop(place) == (0, told, "")  # a stale socket is no server


def test_without_work_it_leaves(start: Start) -> None:
    server = start("--idle-timeout", "0.2")
    assert server.left() == 0
    assert not Path(server.unix.path).exists()


def test_with_an_open_run_it_stays_and_leaves_afterwards(start: Start, tmp_path: Path) -> None:
    server = start("--idle-timeout", "0.3")
    client = server.client
    workspace = client.workspace(tmp_path)
    run_id = client.submit(workspace, client.session(workspace), "ask tool output")
    with pytest.raises(subprocess.TimeoutExpired):
        server.process.wait(1.5)
    assert done(client.get("/v1/health")) == {"status": "ok"}
    (request,) = done(client.get(f"{workspace}/permissions"))["permissions"]
    done(client.post(f"{workspace}/permissions/grant", {"id": request["id"], "action": "allow"}))
    assert server.left() == 0
    assert done(start().client.get(f"{workspace}/runs/{run_id}"))["state"] == "completed"


def test_with_an_open_stream_it_stays_and_leaves_afterwards(start: Start, tmp_path: Path) -> None:
    server = start("--idle-timeout", "0.3")
    workspace = server.client.workspace(tmp_path)
    with server.client.events(workspace) as events:
        events.until("caught_up")
        with pytest.raises(subprocess.TimeoutExpired):
            server.process.wait(1.5)
        assert done(server.client.get("/v1/health")) == {"status": "ok"}
    assert server.left() == 0


def test_idle_time_counts_from_the_last_answer_or_end() -> None:
    now = 100.0
    metrics = Metrics(lambda: now)
    assert metrics.used_at == 100
    metrics.request_began()
    now = 200.0
    metrics.request_ended()  # a long stream
    assert (metrics.used_at, metrics.open_requests) == (200, 0)
    now = 300.0
    end = RunEnd(session_id="s", run_id="r", message_id=None, text="", usage=Usage())
    metrics.observe_events([Committed("w", 1, "run_complete", "created", "s", b"", end)])
    assert metrics.used_at == 300


def test_what_a_killed_server_left_is_resumed_and_counted(start: Start, tmp_path: Path) -> None:
    server = start()
    client = server.client
    workspace = client.workspace(tmp_path)
    session_id = client.session(workspace)
    with client.events(workspace) as events:
        first = client.submit(workspace, session_id, "say before;ask tool output;say after")
        queued = [client.submit(workspace, session_id, "say queued") for _ in range(2)]
        events.until("permission_request")
    server.kill()
    client = start().client
    assert client.metric("kedge_queue_length") == 2
    while client.metric('kedge_runs_open{state="running"}') != 1:
        pass
    (request,) = done(client.get(f"{workspace}/permissions"))["permissions"]
    done(client.post(f"{workspace}/permissions/grant", {"id": request["id"], "action": "allow"}))
    assert client.ended(workspace, first)["attempt"] == 2
    for run_id in queued:
        assert client.ended(workspace, run_id)["state"] == "completed"
    assert client.metric("kedge_queue_length") == 0


def test_a_server_is_told_apart_from_one_that_was_stopped_for_a_while(start: Start, place: Place) -> None:
    """A stopped process still owns its directory: another is refused, and the first goes on."""
    server = start()
    server.signal(signal.SIGSTOP)
    try:
        assert "is in use" in place.refused()
    finally:
        server.signal(signal.SIGCONT)
    assert server.client.get("/v1/health").status == 200


def test_help_shows_what_people_need(place: Place) -> None:
    process = place.popen("serve", "--help", module="kedge")
    out, _ = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0
    assert all(option in out for option in ("--host", "--data-dir", "--stop", "--idle-timeout", "--allow-remote"))
    assert "--ready-fd" not in out
