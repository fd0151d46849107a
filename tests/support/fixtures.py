"""Fixtures for tests that drive an engine; `tests/conftest.py` makes them known everywhere."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from tests.support.harness import Kedge
from tests.support.stores import STORES, StoreKind


@pytest.fixture(params=STORES, ids=[kind.name for kind in STORES])
def store_kind(request: pytest.FixtureRequest) -> StoreKind:
    return request.param


@pytest.fixture
async def kedge(store_kind: StoreKind, tmp_path: Path) -> AsyncGenerator[Kedge]:
    async with Kedge(store_kind, tmp_path) as kedge:
        yield kedge
