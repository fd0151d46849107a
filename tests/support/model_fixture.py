"""Fixtures of the scripted model server; `tests/conftest.py` makes them known everywhere."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator

import pytest

from tests.support.model_control import ModelControl, model_thread
from tests.support.model_server import HOST, ModelServer


@pytest.fixture
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever proxy the machine uses, it cannot reach our loopback."""
    monkeypatch.setenv("NO_PROXY", HOST)


@pytest.fixture
async def model_server(_no_proxy: None) -> AsyncGenerator[ModelServer]:
    """A model server on the test's own loop."""
    async with ModelServer() as server:
        yield server


@pytest.fixture
def model_control(_no_proxy: None) -> Generator[ModelControl]:
    """A model server that lives on when the test's loop, or everything on it, does not."""
    with model_thread() as control:
        yield control
