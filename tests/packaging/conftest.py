from __future__ import annotations

import os

import pytest

from tests.packaging.shop import Shop


@pytest.fixture(scope="session")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Shop:
    base = tmp_path_factory.getbasetemp()
    # A worker's directory is in that of the run, which they share.
    shop = Shop((base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "packaging")
    shop.stock()
    return shop
