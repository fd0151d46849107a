"""The commands that install, on a machine where nothing is installed: as they stand in the pages, from a clone."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
from collections.abc import Generator
from pathlib import Path

import pytest

from tests.docs.pages import Block, blocks, fenced, for_readers
from tests.docs.shell import Shell
from tests.docs.stand_ins import KEY
from tests.e2e.home import Home, new_home
from tests.models.embedded import cache
from tests.packaging.shop import ROOT, Shop, said
from tests.support.model_control import ModelControl

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]  # it builds and installs, and fetches what that needs

EXTENDING = "docs/providers-extending.md"
FRESH = [block for page in for_readers() for block in blocks(page) if block.is_fresh]


@pytest.fixture
def home(model_control: ModelControl) -> Generator[Home]:
    with new_home(model_control) as home:
        yield home


@pytest.fixture
def shell(shop: Shop, home: Home, model_control: ModelControl, tmp_path: Path) -> Generator[Shell]:
    """In the clone, with an environment that is active, empty and all that this shell knows."""
    environment = tmp_path / "env"
    said(sys.executable, str(ROOT / "dev.py"), "venv", str(environment), env=shop.env(tmp_path))
    kept = home.data_dir / "models" / "starter.gguf"
    kept.parent.mkdir(parents=True)
    kept.symlink_to(cache.starter())
    own = {name: value for name, value in home.env.items() if name.startswith(("XDG_", "KEDGE_DATA", "NO_"))}
    env = {
        **shop.env(tmp_path),
        **own,
        "PATH": f"{environment / 'bin'}:/usr/local/bin:/usr/bin:/bin",
        "KEDGE_MODEL": "local/starter",  # also where somebody has a model server running
        "ACME_BASE_URL": model_control.base_url,
    }
    shell = Shell(clone(shop, tmp_path), tmp_path, env, limit_s=300.0)
    yield shell
    shell.close()
    subprocess.run([environment / "bin" / "kedge", "serve", "--stop"], env=env, check=True, timeout=60)


def clone(shop: Shop, directory: Path) -> Path:
    """The tree as somebody else has it, with the package of the page beside it."""
    with tarfile.open(shop.sdist) as archive:
        archive.extractall(directory, filter="data")
    (tree,) = directory.glob("kedge-*")
    (tree / "kedge-acme").mkdir()
    (tree / "kedge-acme" / "pyproject.toml").write_text(fenced(EXTENDING, "ini")[0])
    (tree / "kedge-acme" / "kedge_acme.py").write_text(fenced(EXTENDING, "python")[0])
    return tree


def test_what_the_pages_install_works_from_the_first_command_on(shell: Shell, model_control: ModelControl) -> None:
    assert {block.page for block in FRESH} == {"README.md", "docs/getting-started.md", EXTENDING}
    first, *rest = FRESH
    assert re.search(r"\b(4|four)\b", typed(shell, first)), "two and two"
    for block in rest:
        if block.steps != first.steps:  # the same command twice is the same
            typed(shell, block)
    assert model_control.stats()["count"] == 1, "the provider of the package was asked"


def typed(shell: Shell, block: Block) -> str:
    (step,) = block.steps
    code, printed = shell.type(step._replace(command=step.command.replace("_API_KEY=…", f"_API_KEY={KEY}")))
    assert code == 0, f"{block.place}\n{printed}"
    return printed
