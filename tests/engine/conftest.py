"""A turn that changes files, and where it does."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.file_turn import FileTurn
from tests.support.harness import Kedge


@pytest.fixture
def turn(kedge: Kedge) -> FileTurn:
    turn = kedge.turns["prompt"] = FileTurn()
    return turn


@pytest.fixture
def root(kedge: Kedge) -> Path:
    return kedge.engine.root_of(kedge.workspace_id)
