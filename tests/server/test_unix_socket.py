"""P16 on the Unix socket: 0600, in a 0700 directory that is ours, and open to its owner only."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from kedge.protocol.address import AddressError, parse
from tests.server.client import Client
from tests.server.conftest import Start
from tests.server.process import Place, Server

NOBODY = 65534
as_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can become somebody else")

# Connects as another user; says what came of it.
CONNECT_AS = """
import os, socket, sys
sock = socket.socket(socket.AF_UNIX)
directory = os.open(os.path.dirname(sys.argv[2]), os.O_RDONLY)
os.fchdir(directory)
os.setgroups([]); os.setgid(int(sys.argv[1])); os.setuid(int(sys.argv[1]))
try:
    sock.connect(os.path.basename(sys.argv[2]))
    sock.sendall(b"GET /v1/health HTTP/1.1\\r\\nHost: localhost\\r\\nConnection: close\\r\\n\\r\\n")
    print("answered" if sock.recv(100) else "hung up")
except OSError as error:
    print(type(error).__name__)
"""


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def connected_as(uid: int, path: Path) -> str:
    command = [sys.executable, "-c", CONNECT_AS, str(uid), str(path)]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout.strip()


def test_the_socket_is_closed_to_others_whatever_the_umask(place: Place) -> None:
    old_umask = os.umask(0)
    try:
        server = place.start()
    finally:
        os.umask(old_umask)
    try:
        assert stat.S_ISSOCK(place.socket_path.lstat().st_mode)
        assert mode_of(place.socket_path) == 0o600
        assert mode_of(place.runtime_dir / "kedge") == 0o700
        private = [path.name for path in place.data_dir.iterdir() if mode_of(path) & 0o077]
        assert not private, "readable by others"
        assert mode_of(place.data_dir) == 0o700
    finally:
        assert server.stop() == 0


def test_without_a_runtime_directory_the_temporary_one_is_used(place: Place, start: Start) -> None:
    server = start(env={"XDG_RUNTIME_DIR": "", "TMPDIR": str(place.runtime_dir)})
    directory = place.runtime_dir / f"kedge-{os.getuid()}"
    assert Path(server.unix.path).parent == directory
    assert mode_of(directory) == 0o700
    assert server.client.get("/v1/health").status == 200
    assert server.stop() == 0


def test_a_runtime_directory_of_ours_that_is_open_is_closed(place: Place, start: Start) -> None:
    directory = place.runtime_dir / "kedge"
    directory.mkdir()
    directory.chmod(0o777)
    start()
    assert mode_of(directory) == 0o700


@as_root
def test_a_runtime_directory_of_somebody_else_is_refused(place: Place) -> None:
    directory = place.runtime_dir / "kedge"
    directory.mkdir(mode=0o700)
    os.chown(directory, NOBODY, NOBODY)
    assert f"{directory} is not your directory" in place.refused()


@pytest.mark.parametrize("what", ["link", "file"])
def test_what_is_no_directory_is_refused(place: Place, tmp_path: Path, what: str) -> None:
    directory = place.runtime_dir / "kedge"
    if what == "link":
        tmp_path.chmod(0o700)
        directory.symlink_to(tmp_path)
    else:
        directory.write_text("")
    why = place.refused()
    assert str(directory) in why
    assert "XDG_RUNTIME_DIR" in why


def test_a_directory_that_others_use_is_refused_and_not_closed(place: Place) -> None:
    """It could be /tmp."""
    directory = place.runtime_dir / "shared"
    directory.mkdir()
    directory.chmod(0o1777)
    why = place.refused("--host", f"unix://{directory}/x.sock")
    assert f"{directory} is open to other users" in why
    assert mode_of(directory) == 0o1777
    assert list(directory.iterdir()) == []


def test_a_socket_can_be_put_into_a_directory_of_ours(place: Place, start: Start) -> None:
    path = place.runtime_dir / "mine" / "x.sock"
    server = start("--host", f"unix://{path}")
    assert [str(address) for address in server.addresses] == [f"unix://{path}"]  # instead of the default
    assert (mode_of(path), mode_of(path.parent)) == (0o600, 0o700)
    assert server.stop() == 0
    assert not path.exists()


@as_root
def test_another_user_is_refused_even_when_the_files_would_let_them(place: Place, start: Start) -> None:
    server = start()
    assert connected_as(os.getuid(), place.socket_path) == "answered"
    assert connected_as(NOBODY, place.socket_path) == "PermissionError"
    place.socket_path.parent.chmod(0o755)
    assert connected_as(NOBODY, place.socket_path) == "PermissionError"
    place.socket_path.chmod(0o666)
    assert connected_as(NOBODY, place.socket_path) in ("hung up", "ConnectionResetError", "BrokenPipeError")
    assert server.client.get("/v1/health").status == 200
    assert "refused a connection of user 65534" in place.log
    assert server.stop() == 0
    assert "ERROR" not in place.log


def test_a_socket_that_a_dead_server_left_is_replaced(place: Place, start: Start) -> None:
    first = start()
    first.kill()
    assert place.socket_path.exists()
    second = start()
    assert second.addresses == first.addresses
    assert second.client.get("/v1/health").status == 200


def test_a_socket_of_another_living_server_is_refused(place: Place, start: Start, tmp_path: Path) -> None:
    path = place.runtime_dir / "mine" / "x.sock"
    server = start("--host", f"unix://{path}")
    why = place.refused("--host", f"unix://{path}", "--data-dir", str(tmp_path / "other"))
    assert f"Another server listens on unix://{path}" in why
    assert server.client.get("/v1/health").status == 200


def test_a_file_in_the_way_is_refused_and_left_alone(place: Place) -> None:
    path = place.runtime_dir / "mine" / "x.sock"
    path.parent.mkdir(mode=0o700)
    path.write_text("precious")
    assert f"{path} exists and is not a socket" in place.refused("--host", f"unix://{path}")
    assert path.read_text() == "precious"


def test_a_path_too_long_for_a_socket_is_refused(place: Place) -> None:
    path = place.runtime_dir / ("x" * 100) / "x.sock"
    why = place.refused("--host", f"unix://{path}")
    assert "too long" in why
    assert "--host" in why


def test_a_runtime_directory_too_deep_for_a_socket_is_passed_over(place: Place, tmp_path: Path) -> None:
    env = {"XDG_RUNTIME_DIR": str(tmp_path / ("x" * 100))}
    server = Server(place, place.popen(env=env))
    try:
        assert server.unix.path.startswith(f"/tmp/kedge-{os.getuid()}/")
        assert mode_of(Path(server.unix.path)) == 0o600
        assert mode_of(Path(server.unix.path).parent) == 0o700
    finally:
        assert server.stop() == 0


def test_what_is_no_address_is_refused(place: Place) -> None:
    assert "'nonsense' is not an address" in place.refused("--host", "nonsense")
    for host in ("unix://relative.sock", "http://127.0.0.1:1", "tcp://127.0.0.1", "tcp://:1", "tcp://127.0.0.1:65536"):
        with pytest.raises(AddressError):
            parse(host)


def test_whoever_connects_and_says_nothing_is_no_trouble(server: object, client: Client) -> None:
    del server
    with socket.socket(socket.AF_UNIX) as silent:
        silent.connect(str(client.address).removeprefix("unix://"))
        assert client.get("/v1/health").status == 200
