"""P11: who stops reading costs little, delays nobody, loses nothing, and does not keep the server from leaving."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.server.client import LIMIT_S, Client, connect
from tests.server.conftest import Start
from tests.server.process import Server

STALLED = 50
WORDS = 10_000  # about 2.5 MB of frames: with the runs before, more than the ring keeps
MOST_BYTES = STALLED * 1.5 * 1024 * 1024  # each may hold a page of the log, and what was cut from it


@contextmanager
def stalled_readers(client: Client, workspace: str, count: int = STALLED) -> Generator[list[socket.socket]]:
    """Subscribers that never read what they asked for."""
    sockets = [connect(client.address) for _ in range(count)]
    for sock in sockets:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.sendall(f"GET {workspace}/events?after=0 HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    while client.metric("kedge_subscribers") < count:
        pass
    yield sockets
    for sock in sockets:
        sock.close()


def cpu_s(server: Server) -> float:
    fields = Path(f"/proc/{server.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def long_run(server: Server, workspace: str, session_id: str) -> float:
    """Streams a long answer; returns the processor time that it took."""
    began = cpu_s(server)
    run_id = server.client.submit(workspace, session_id, f"say {'word ' * WORDS}")
    assert server.client.ended(workspace, run_id)["state"] == "completed"
    return cpu_s(server) - began


def read_to_the_end(sock: socket.socket, run_id: str) -> bytes:
    """Everything up to the end of a run, on a socket that was not read until now."""
    mark = b'"type":"run_complete"'
    name = run_id.encode()
    data = b""
    while not (mark in data and name in data.rpartition(mark)[2] and data.endswith(b"\n\n\r\n")):
        piece = sock.recv(1024 * 1024)
        assert piece, "the stream ended"
        data += piece
    return data


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads the server's processor time from /proc")
def test_stalled_readers_cost_little_delay_nobody_and_catch_up(start: Start, tmp_path: Path) -> None:
    server = start()
    client = server.client
    workspace = client.workspace(tmp_path)
    session_id = client.session(workspace)
    long_run(server, workspace, session_id)  # warm: the ring and the heap have grown as far as they do
    alone_s = long_run(server, workspace, session_id)
    before = client.metric("kedge_memory_bytes")
    with stalled_readers(client, workspace) as sockets:
        with_others_s = long_run(server, workspace, session_id)
        grown = client.metric("kedge_memory_bytes") - before
        assert client.metric("kedge_feed_lag_events") > 0
        assert grown < MOST_BYTES, f"{grown / 2**20:.0f} MiB for {STALLED} stalled readers"
        # What is sent to each before its buffers are full is paid once; a delay for each word would be many times that.
        assert with_others_s < 2 * alone_s + 1.0, f"{with_others_s:.2f} s of the processor instead of {alone_s:.2f} s"
        last = client.submit(workspace, session_id, "say the last word", run_id="the-last")
        client.ended(workspace, last)
        for sock in sockets[:3]:
            told = read_to_the_end(sock, last)
            assert told.count(b"\ndata: ") >= client.get(f"{workspace}/log?limit=1").json["head"]
    while client.metric("kedge_subscribers") > 0:
        pass
    assert server.stop() == 0


@pytest.mark.parametrize("sig", [signal.SIGTERM, signal.SIGINT])
def test_streams_end_and_the_server_leaves_also_with_stalled_readers(
    start: Start, tmp_path: Path, sig: signal.Signals
) -> None:
    server = start()
    client = server.client
    workspace = client.workspace(tmp_path)
    session_id = client.session(workspace)
    client.ended(workspace, client.submit(workspace, session_id, f"fail {'x' * 500_000}"))  # more than buffers hold
    with stalled_readers(client, workspace, 10), client.events(workspace) as healthy:
        healthy.until("caught_up")
        last = client.submit(workspace, session_id, "say the last word")
        client.ended(workspace, last)
        server.signal(sig)
        healthy.end_of(last)
        assert list(healthy) == []  # ended by the server, in order: chunked encoding is complete
        assert server.process.wait(LIMIT_S) == 0
    assert server.left() == 0
    assert "ERROR" not in server.place.log
