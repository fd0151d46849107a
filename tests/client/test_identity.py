"""P16 from the client's side: whoever took the socket's place first gets nothing from us."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Generator
from pathlib import Path

import pytest

from kedge.client.async_transport import AsyncTransport
from kedge.client.environment import ServerLocation, find_server
from kedge.client.errors import NotAllowed
from kedge.client.reconnect import Waiter
from kedge.client.transport import NoServer, Transport, open_connection
from kedge.protocol.address import UnixAddress, default_address
from tests.client.command import LIMIT_S, Kedge
from tests.server.process import Place, Server

NOBODY = 65534
as_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can become somebody else")
SECRETS = {"OPENAI_API_KEY": "sk-a-planted-key"}

# Listens as another user, on a socket whose file may be ours, and prints everything that it is sent, until its input
# is closed.
SQUATTER = """
import os, selectors, socket, sys
sock = socket.socket(socket.AF_UNIX)
sock.bind(sys.argv[1])
os.chmod(sys.argv[1], 0o666)
os.setgroups([]); os.setgid(int(sys.argv[2])); os.setuid(int(sys.argv[2]))
sock.listen()
print("listening", flush=True)
waiting = selectors.DefaultSelector()
waiting.register(sock, selectors.EVENT_READ)
waiting.register(sys.stdin, selectors.EVENT_READ)
while True:
    for key, _ in waiting.select():
        if key.fileobj is sys.stdin:
            sys.exit()
        elif key.fileobj is sock:
            waiting.register(sock.accept()[0], selectors.EVENT_READ)
        elif data := key.fileobj.recv(65536):
            sys.stdout.buffer.write(data)
            key.fileobj.send(b"HTTP/1.1 200 OK\\r\\nContent-Length: 2\\r\\n\\r\\n{}")
        else:
            waiting.unregister(key.fileobj)
"""


class Squat:
    """The place that the default socket of a data directory would have, taken by another."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.directory = place.runtime_dir / "kedge"
        self.path = Path(default_address(str(place.data_dir)).path)
        self.processes: list[subprocess.Popen[bytes]] = []
        assert self.path.parent == self.directory

    def listen(self, path: Path | None = None, uid: int = NOBODY) -> None:
        command = [sys.executable, "-c", SQUATTER, str(path or self.path), str(uid)]
        squatter = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.processes.append(squatter)
        assert squatter.stdout is not None
        assert squatter.stdout.readline() == b"listening\n"

    def heard(self) -> bytes:
        return b"".join(squatter.communicate(timeout=LIMIT_S)[0] for squatter in self.processes)


@pytest.fixture
def squat(here: Place) -> Generator[Squat]:
    squat = Squat(here)
    yield squat
    for squatter in squat.processes:
        squatter.kill()
        squatter.communicate()


def taken_directory(squat: Squat) -> str:
    squat.directory.mkdir(mode=0o755)
    squat.listen()
    os.chown(squat.directory, NOBODY, NOBODY)
    return f"{squat.directory} is not your directory; remove it, or set XDG_RUNTIME_DIR"


def linked_directory(squat: Squat) -> str:
    elsewhere = squat.place.runtime_dir / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    squat.directory.symlink_to(elsewhere)
    squat.listen()
    return f"{squat.directory} is not your directory; remove it, or set XDG_RUNTIME_DIR"


def open_directory(squat: Squat) -> str:
    squat.directory.mkdir()
    squat.listen()
    squat.directory.chmod(0o770)
    return f"other users can access {squat.directory}; chmod 700 it"


def socket_of_another(squat: Squat) -> str:
    squat.directory.mkdir(mode=0o700)
    squat.listen()
    os.chown(squat.path, NOBODY, NOBODY)
    return f"{squat.path} is not your socket; remove it"


def linked_socket(squat: Squat) -> str:
    squat.directory.mkdir(mode=0o700)
    squat.listen(squat.place.runtime_dir / "x.sock")
    squat.path.symlink_to(squat.place.runtime_dir / "x.sock")
    return f"{squat.path} is not your socket; remove it"


def another_user_listens(squat: Squat) -> str:
    """All the files are ours: only the system knows better."""
    squat.directory.mkdir(mode=0o700)
    squat.listen()
    return f"the server at unix://{squat.path} is run by user {NOBODY}, not by you; check --host and XDG_RUNTIME_DIR"


SQUATS = [
    taken_directory,
    linked_directory,
    open_directory,
    socket_of_another,
    linked_socket,
    another_user_listens,
]


@as_root
@pytest.mark.parametrize("take", SQUATS)
async def test_whoever_was_there_first_hears_nothing(
    squat: Squat, tmp_path: Path, take: Callable[[Squat], str]
) -> None:
    why = take(squat)
    squat.place.data_dir.mkdir(mode=0o700)  # somebody has used it before
    kedge = Kedge(squat.place, tmp_path)
    for args in (("run", "-q", "a private prompt"), ("session", "list"), ("serve", "--stop")):
        done = kedge(*args, env=SECRETS)
        assert (done.code, done.out) == (2, "")
        assert why[1:] in done.err
    if take is not open_directory:  # the doctor closes it
        assert f"FAIL  {why}" in kedge("doctor", "--offline", env=SECRETS).out
    with pytest.raises(NotAllowed) as raised:
        Transport(find_server(), Waiter(), client="test").request("POST", "/v1/workspaces", {"path": "private"})
    assert str(raised.value) == why
    wire = AsyncTransport(find_server(), client="test")
    with pytest.raises(NotAllowed) as raised:
        await wire.request("POST", "/v1/workspaces", {"path": "private"})
    assert str(raised.value) == why
    await wire.close()
    assert squat.heard() == b""


@as_root
async def test_a_socket_that_was_named_is_checked_too(squat: Squat, tmp_path: Path) -> None:
    path = squat.place.runtime_dir / "named.sock"
    squat.listen(path)
    kedge = Kedge(squat.place, tmp_path)
    done = kedge("run", "--host", f"unix://{path}", "a private prompt", env=SECRETS)
    assert done.code == 2
    assert f"is run by user {NOBODY}, not by you" in done.err
    wire = AsyncTransport(ServerLocation(UnixAddress(str(path)), "", None, is_managed=False), client="test")
    with pytest.raises(NotAllowed, match="not by you"):
        await wire.request("GET", "/v1/health")
    await wire.close()
    assert squat.heard() == b""


@pytest.mark.parametrize(
    ("mode", "is_fine"), [(0o700, True), (0o755, True), (0o1777, True), (0o777, False), (0o770, False)]
)
def test_a_named_socket_may_be_where_others_cannot_replace_it(
    server: Server, tmp_path: Path, mode: int, is_fine: bool
) -> None:
    """As one that SSH has forwarded."""
    directory = server.place.runtime_dir / f"shared-{mode:o}"
    directory.mkdir()
    directory.chmod(mode)
    (directory / "x.sock").symlink_to(server.unix.path)
    done = Kedge(server.place, tmp_path)("runs", "--json", "--host", f"unix://{directory}/x.sock")
    if is_fine:
        assert (done.code, done.err) == (0, "")
    else:
        assert (done.code, done.out) == (2, "")
        assert str(directory) in done.err


@as_root
def test_a_server_of_root_may_be_used_by_a_user(tmp_path: Path) -> None:
    """Whoever is root could read all of it anyway."""
    code = """
import os, socket, sys
from kedge.protocol.address import UnixAddress
from kedge.protocol.address import check_peer
theirs, ours = socket.socketpair()
os.setuid(int(sys.argv[1]))
check_peer(ours, UnixAddress("/x"))
print("fine")
"""
    done = subprocess.run([sys.executable, "-c", code, str(NOBODY)], capture_output=True, text=True, timeout=LIMIT_S)
    assert done.stdout == "fine\n", done.stderr


def test_an_open_directory_of_ours_is_closed_by_the_first_server(here: Place, tmp_path: Path) -> None:
    """Nobody is in it yet."""
    directory = here.runtime_dir / "kedge"
    directory.mkdir()
    directory.chmod(0o777)
    done = Kedge(here, tmp_path)("runs", "--json")
    assert (done.code, done.err) == (0, "")
    assert directory.stat().st_mode & 0o777 == 0o700


def test_a_socket_that_nobody_listens_on_is_absent(here: Place) -> None:
    directory = here.runtime_dir / "kedge"
    directory.mkdir(mode=0o700)
    path = default_address(str(here.data_dir)).path
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(path)
    with pytest.raises(NoServer):
        open_connection(find_server())
