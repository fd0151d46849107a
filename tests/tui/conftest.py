"""A home with the real server and the scripted model, for the interface to live in."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from tests.e2e.home import Home, new_home
from tests.support.model_control import ModelControl, model_thread


@pytest.fixture(scope="package")
def models() -> Generator[ModelControl]:
    """Shared: prompts carry their plans."""
    with model_thread() as models:
        yield models


@pytest.fixture
def home(models: ModelControl) -> Generator[Home]:
    with new_home(models, has_titles=False) as home:
        yield home


@pytest.fixture(scope="package")
def shared_home(models: ModelControl) -> Generator[Home]:
    """One server for all that changes nothing but its own workspace."""
    with new_home(models, has_titles=False) as home:
        server = home.serve()
        yield home
        assert server.stop() == 0


@pytest.fixture
def served(shared_home: Home, monkeypatch: pytest.MonkeyPatch) -> Home:
    """This process lives there: the interface's variables are its own."""
    for name, value in shared_home.env.items():
        monkeypatch.setenv(name, value)
    return shared_home
