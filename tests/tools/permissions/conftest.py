"""One workspace for all cases of a module: no test of them changes it."""

from __future__ import annotations

import pytest

from tests.tools.permissions.bench import Bench


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return Bench(tmp_path_factory.mktemp("bench"))
