"""One server and one model for most tests, which keep to workspaces of their own; a home for those that need more."""

from __future__ import annotations

import secrets
from collections.abc import Generator
from pathlib import Path

import pytest

from kedge.client import Client
from tests.client.command import Kedge
from tests.e2e.home import Home, new_home
from tests.server.process import Server
from tests.support.model_control import ModelControl, model_thread


@pytest.fixture(scope="module")
def models() -> Generator[ModelControl]:
    """Shared by the tests of a module: prompts carry their plans, and all calls that were made are the module's own."""
    with model_thread() as models:
        yield models


@pytest.fixture(scope="module")
def server(models: ModelControl) -> Generator[Server]:
    """Shared: never stop it, never count on being alone in it."""
    with new_home(models) as home:
        server = home.serve()
        yield server
        assert server.stop() == 0


@pytest.fixture
def home(models: ModelControl) -> Generator[Home]:
    with new_home(models) as home:
        yield home


@pytest.fixture
def kedge(server: Server, tmp_path: Path) -> Kedge:
    """The command, in a workspace of its own on the shared server."""
    return Kedge(server.place, tmp_path)


@pytest.fixture
def client(server: Server, tmp_path: Path) -> Generator[Client]:
    """A program in the same workspace."""
    with Client.connect(str(tmp_path), host=str(server.unix)) as client:
        yield client


@pytest.fixture
def gate() -> str:
    """A name for a place where the model waits."""
    return f"gate-{secrets.token_hex(4)}"
