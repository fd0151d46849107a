"""ToolHarness for each test; whatever it started is ended with it."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from tests.tools.harness import ToolHarness


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncGenerator[ToolHarness]:
    harness = ToolHarness(tmp_path)
    yield harness
    await harness.end_all()
