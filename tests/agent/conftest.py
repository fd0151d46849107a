"""An agent that speaks to the scripted model server, on an engine that the test drives."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import pytest

from tests.agent.driver import Driver
from tests.support.harness import Kedge
from tests.support.model_server import ModelServer


@pytest.fixture
async def driver(kedge: Kedge, model_server: ModelServer) -> AsyncGenerator[Driver]:
    async with Driver(kedge, model_server.base_url) as driver:
        yield driver
