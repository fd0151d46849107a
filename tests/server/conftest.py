"""Servers for tests. Most share one and keep to workspaces of their own; those that end it start their own."""

from __future__ import annotations

import shutil
import signal
import tempfile
from collections.abc import Callable, Generator
from pathlib import Path

import pytest

from tests.server.client import Client
from tests.server.process import Place, Server


def short_dir() -> Path:
    """The path of a Unix socket has about a hundred characters, and pytest's directories take most of them."""
    return Path(tempfile.mkdtemp(prefix="kedge-t-"))


@pytest.fixture(scope="package")
def server() -> Generator[Server]:
    """Shared: never stop it, never count on being alone in it."""
    directory = short_dir()
    server = Place(directory).start("--host", "tcp://127.0.0.1:0")
    yield server
    server.signal(signal.SIGTERM)
    server.signal(signal.SIGINT)  # tests left runs behind, and nobody needs them to have their time
    assert server.left() == 0
    shutil.rmtree(directory)


@pytest.fixture
def client(server: Server) -> Client:
    return server.client


@pytest.fixture
def place() -> Generator[Place]:
    directory = short_dir()
    yield Place(directory)
    shutil.rmtree(directory)


Start = Callable[..., Server]


@pytest.fixture
def start(place: Place) -> Generator[Start]:
    """Starts servers in `place`; what is still there at the end is killed."""
    started: list[Server] = []

    def start(*args: str, **options: dict[str, str]) -> Server:
        started.append(place.start(*args, **options))
        return started[-1]

    yield start
    for server in started:
        server.kill()


@pytest.fixture
def workspace(client: Client, tmp_path: Path) -> str:
    return client.workspace(tmp_path)
