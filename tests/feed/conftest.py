"""A feed with a small ring."""

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from tests.feed.streams import SMALL_RING
from tests.support.bench import Bench


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncGenerator[Bench]:
    async with Bench(tmp_path, ring_bytes=SMALL_RING) as bench:
        yield bench
