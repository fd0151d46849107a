"""Checks of `kedge doctor`: the data directory and its server."""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import tempfile
from collections.abc import Generator
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import pytest

from kedge.cli import doctor_checks
from kedge.cli.doctor_checks import Finding, check_server
from kedge.client.environment import find_server
from kedge.protocol.address import OWNER_FILE, UnixAddress


class Home(NamedTuple):
    data: Path
    socket: Path

    def findings(self) -> list[Finding]:
        return list(check_server(find_server(data_dir=str(self.data))))


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch) -> Generator[Home]:
    # Not pytest's directory: the path of a Unix socket may have about a hundred characters.
    directory = Path(tempfile.mkdtemp(prefix="kedge-t-"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(directory))
    monkeypatch.delenv("KEDGE_HOST", raising=False)
    where = find_server(data_dir=str(directory / "data")).address
    assert isinstance(where, UnixAddress)
    yield Home(directory / "data", Path(where.path))
    shutil.rmtree(directory)


def test_a_socket_that_a_dead_server_left_is_in_nobodys_way(home: Home) -> None:
    home.data.mkdir()
    home.socket.parent.mkdir(mode=0o700)
    with closing(socket.socket(socket.AF_UNIX)) as left:
        left.bind(str(home.socket))
    _, server = home.findings()
    assert server[0] is True
    assert "ended unexpectedly" in server[1]


def test_a_server_that_does_not_answer_is_named_with_the_way_to_end_it(home: Home) -> None:
    home.data.mkdir()
    with (home.data / OWNER_FILE).open("w") as lock:
        lock.write(f"process {os.getpid()}\n")
        lock.flush()
        fcntl.flock(lock, fcntl.LOCK_EX)
        _, (is_ok, text) = home.findings()
    assert is_ok is False
    assert str(home.data) in text
    assert str(home.socket) in text
    assert text.endswith(f"kill {os.getpid()}")


def test_a_directory_that_cannot_be_made_is_a_failure_and_no_server_is_looked_for(home: Home) -> None:
    home.data.write_text("a file")
    [(is_ok, text)] = home.findings()
    assert is_ok is False
    assert text.endswith("--data-dir or KEDGE_DATA_DIR")


def test_a_directory_that_cannot_be_written_is_a_failure(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    home.data.mkdir()
    monkeypatch.setattr(os, "access", _no)  # root may write anywhere
    [(is_ok, text)] = home.findings()
    assert is_ok is False
    assert "--data-dir" in text


@pytest.mark.parametrize(("free_bytes", "is_ok"), [(1000, False), (100 << 20, None)])
def test_a_disk_that_is_full_is_a_failure_and_one_that_is_nearly_so_a_note(
    home: Home, free_bytes: int, is_ok: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    home.data.mkdir()
    usage = shutil.disk_usage(home.data)._replace(free=free_bytes)

    def disk_usage(path: str) -> object:
        return usage

    monkeypatch.setattr(doctor_checks.shutil, "disk_usage", disk_usage)
    first = home.findings()[0]
    assert first[0] is is_ok
    assert "free" in first[1]


def test_a_server_that_is_named_and_is_not_there_is_a_failure(home: Home) -> None:
    [(is_ok, text)] = list(check_server(find_server(host=f"unix://{home.socket}", data_dir=str(home.data))))
    assert is_ok is False
    assert f"kedge serve --host unix://{home.socket}" in text


def _no(path: str, mode: int) -> bool:
    return False
