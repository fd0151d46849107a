"""Hands for each test; whatever it started is ended with it."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from tests.tools.hands import Hands


@pytest.fixture
async def hands(tmp_path: Path) -> AsyncGenerator[Hands]:
    hands = Hands(tmp_path)
    yield hands
    await hands.end_all()
