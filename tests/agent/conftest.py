"""An agent that speaks to the scripted model server, on an engine that the test drives."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import pytest

from tests.agent.pilot import Pilot
from tests.support.harness import Kedge
from tests.support.model_server import ModelServer


@pytest.fixture
async def pilot(kedge: Kedge, model_server: ModelServer) -> AsyncGenerator[Pilot]:
    async with Pilot(kedge, model_server.base_url) as pilot:
        yield pilot
