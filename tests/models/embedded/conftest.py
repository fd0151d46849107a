from __future__ import annotations

import os
import tempfile
from collections.abc import AsyncGenerator, Generator
from pathlib import Path

import pytest

from kedge.models.client import ModelClient
from kedge.models.embedded.models import EmbeddedModels
from tests.models.embedded import cache
from tests.models.embedded.package_index import PackageIndex


@pytest.fixture(scope="session")
def wheel() -> Path:
    return cache.wheel()


@pytest.fixture
def index(wheel: Path) -> Generator[PackageIndex]:
    with PackageIndex(wheel).running() as index:
        yield index


@pytest.fixture
def env(index: PackageIndex) -> dict[str, str]:
    """A user whose package index is that one, and no other."""
    return index_env(index.url)


def index_env(url: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "UV_"))}
    return {**kept, "PIP_CONFIG_FILE": os.devnull, "PIP_INDEX_URL": url, "NO_PROXY": "127.0.0.1"}


@pytest.fixture
async def embedded(data_dir: Path, runtime_dir: Path) -> AsyncGenerator[EmbeddedModels]:
    """One that has the starter already."""
    embedded = EmbeddedModels(data_dir)
    yield embedded
    await embedded.close()


@pytest.fixture
def runtime_dir(monkeypatch: pytest.MonkeyPatch) -> Generator[Path]:
    """Short, because the path of a Unix socket may have about a hundred characters."""
    with tempfile.TemporaryDirectory(prefix="kedge-t-") as directory:
        monkeypatch.setenv("XDG_RUNTIME_DIR", directory)
        yield Path(directory)


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    (tmp_path / "data" / "models").mkdir(parents=True)
    (tmp_path / "data" / "models" / "starter.gguf").symlink_to(cache.starter())
    return tmp_path / "data"


@pytest.fixture
async def models(embedded: EmbeddedModels) -> AsyncGenerator[ModelClient]:
    models = ModelClient(local=embedded)
    yield models
    await models.close()
