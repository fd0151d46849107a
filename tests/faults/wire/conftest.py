"""A real server, reached through a bad network; and homes whose servers are killed or stopped."""

from __future__ import annotations

import os
import random
import secrets
from collections.abc import Generator
from pathlib import Path
from typing import Protocol

import pytest

from tests.client.command import Kedge
from tests.e2e.home import Home, new_home
from tests.faults.wire.proxy import FateOf, Proxy
from tests.server.process import Server
from tests.support.model_control import ModelControl, model_thread


@pytest.fixture(scope="package")
def models() -> Generator[ModelControl]:
    with model_thread() as models:
        yield models


@pytest.fixture(scope="package")
def server(models: ModelControl) -> Generator[Server]:
    """Shared: never stop it, never count on being alone in it."""
    with new_home(models, has_titles=False) as home:  # they come when they come; cuts are placed by what comes always
        server = home.serve()
        yield server
        assert server.stop() == 0


@pytest.fixture
def home(models: ModelControl) -> Generator[Home]:
    """Nobody lives here yet."""
    with new_home(models) as home:
        yield home


@pytest.fixture
def kedge(server: Server, tmp_path: Path) -> Kedge:
    return Kedge(server.place, tmp_path)


@pytest.fixture
def gate() -> str:
    return f"gate-{secrets.token_hex(4)}"


class ProxyOf(Protocol):
    def __call__(self, fate_of: FateOf, *, is_tcp: bool = False) -> Proxy: ...


@pytest.fixture
def proxy_of(server: Server) -> ProxyOf:
    """Proxies in front of the shared server."""

    def proxy_of(fate_of: FateOf, *, is_tcp: bool = False) -> Proxy:
        if not is_tcp:
            return Proxy(server.unix.path, server.place.runtime_dir / f"{secrets.token_hex(4)}.sock", fate_of)
        (server.place.data_dir / "token").write_text(token := secrets.token_urlsafe(32))  # where clients look for it
        return Proxy(server.unix.path, None, fate_of, token)

    return proxy_of


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> random.Random:
    """KEDGE_SEED plays a test again that has failed."""
    seed = os.environ.get("KEDGE_SEED") or str(random.SystemRandom().randrange(1_000_000))
    print(f"KEDGE_SEED={seed}")
    return random.Random(f"{seed}-{request.node.name}")
