"""A server that was named and cannot be reached: a hint within a second, and Ctrl-C ends the wait at once."""

from __future__ import annotations

import os
import re
import signal
import socket
import time
from collections.abc import Iterator

import pytest

from tests.client.command import Kedge, finish, read_until


@pytest.fixture
def silent() -> Iterator[str]:
    """A server that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"tcp://127.0.0.1:{listener.getsockname()[1]}"


@pytest.fixture
def closed() -> str:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"tcp://127.0.0.1:{listener.getsockname()[1]}"


@pytest.mark.parametrize("kind", ["silent", "closed"])
@pytest.mark.parametrize("args", [("run", "hello"), ("runs",)])
def test_a_named_server_that_cannot_be_reached_is_reported_soon_and_ctrl_c_leaves(
    kedge: Kedge, args: tuple[str, ...], kind: str, request: pytest.FixtureRequest
) -> None:
    host = request.getfixturevalue(kind)
    began = time.monotonic()
    process = kedge.start(*args, env={"KEDGE_HOST": host, "KEDGE_TOKEN": "t"})
    assert process.stderr is not None
    said = read_until(process.stderr, b"\n")
    assert time.monotonic() - began < 5  # one second where nothing else runs
    assert re.search(rb"Cannot reach .*; trying for 60 s", said)
    assert host.encode() in said
    os.kill(process.pid, signal.SIGINT)
    began = time.monotonic()
    assert finish(process).code == 130
    assert time.monotonic() - began < 5


def test_a_server_that_answers_needs_no_hint(kedge: Kedge) -> None:
    done = kedge.run("-q", "say here", env={"KEDGE_HOST": f"unix://{kedge.place.socket_path}"})
    assert (done.code, done.out, done.err) == (0, "here\n", "")


def test_a_short_patience_needs_no_hint(kedge: Kedge, closed: str) -> None:
    done = kedge("runs", "--host", closed, "--connect-timeout", "0.5", env={"KEDGE_TOKEN": "t"})
    assert done.code == 3
    assert done.err.count("\n") == 1
