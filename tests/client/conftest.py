"""A place with a scripted server in it, and the `kedge` command as a user of that place runs it."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Generator
from pathlib import Path

import pytest

from tests.client.command import Kedge
from tests.server.process import Place, Server


@pytest.fixture(scope="package")
def server() -> Generator[Server]:
    """Shared: never stop it, never count on being alone in it. Prompts are scripts (`kedge.engine.scripted`)."""
    # Not pytest's directory: the path of a Unix socket may have about a hundred characters.
    directory = Path(tempfile.mkdtemp(prefix="kedge-t-"))
    server = Place(directory).start("--host", "tcp://127.0.0.1:0")
    yield server
    assert server.stop() == 0
    shutil.rmtree(directory)


@pytest.fixture
def kedge(server: Server, tmp_path: Path) -> Kedge:
    """The command, in a workspace of its own on the shared server."""
    return Kedge(server.place, tmp_path)


@pytest.fixture
def place() -> Generator[Place]:
    """Nobody lives here yet; whoever does at the end is asked to leave."""
    directory = Path(tempfile.mkdtemp(prefix="kedge-t-"))
    place = Place(directory)
    yield place
    Kedge(place, directory).end_server()
    shutil.rmtree(directory, ignore_errors=True)  # the server may still write its last file


@pytest.fixture
def here(place: Place, monkeypatch: pytest.MonkeyPatch) -> Place:
    """The same, for clients in this process."""
    for name in [name for name in os.environ if name.startswith("KEDGE_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(place.runtime_dir))
    monkeypatch.setenv("KEDGE_DATA_DIR", str(place.data_dir))
    return place
