"""The wheel on a clean machine, by each installer that people use: the command is there, runs and completes."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Generator
from pathlib import Path
from typing import NamedTuple

import pytest

from hatch_build import PLACES
from kedge.version import VERSION
from tests.e2e.home import Home, asking, new_home
from tests.packaging.shop import ROOT, Shop, program, said
from tests.support.model_control import ModelControl
from tests.tui.terminal import Terminal

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]  # the first test builds, and fetches what a build needs


class Installed(NamedTuple):
    kedge: Path
    share: Path  # where the shells would look


def by_pip(shop: Shop, at: Path) -> Installed:
    said(sys.executable, str(ROOT / "dev.py"), "venv", str(at / "env"), env=shop.env(at))
    said(str(at / "env/bin/python"), "-m", "pip", "install", str(shop.wheel), env=shop.env(at))
    return Installed(at / "env/bin/kedge", at / "env/share")


def by_pipx(shop: Shop, at: Path) -> Installed:
    env = {
        **shop.env(at),
        "PIPX_HOME": str(at / "pipx"),
        "PIPX_BIN_DIR": str(at / "bin"),
        "PIPX_MAN_DIR": str(at / "man"),
        "PIPX_COMPLETION_DIR": str(at / "share"),
        "PIPX_FETCH_MISSING_PYTHON": "never",
    }
    said(program("pipx"), "install", f"--python={sys.executable}", str(shop.wheel), env=env)
    return Installed(at / "bin/kedge", at / "share")


def by_uv_tool(shop: Shop, at: Path) -> Installed:
    env = {**shop.env(at), "UV_TOOL_DIR": str(at / "tools"), "UV_TOOL_BIN_DIR": str(at / "bin")}
    said(program("uv"), "tool", "install", f"--python={sys.executable}", str(shop.wheel), env=env)
    return Installed(at / "bin/kedge", at / "tools/kedge/share")


def by_uv_pip(shop: Shop, at: Path) -> Installed:
    """Where people keep things: under a name with a space, and letters that are not ASCII."""
    place = at / "Mein Gerät ⚓"
    said(program("uv"), "venv", "--quiet", f"--python={sys.executable}", str(place), env=shop.env(at))
    said(program("uv"), "pip", "install", f"--python={place}", str(shop.wheel), env=shop.env(at))
    return Installed(place / "bin/kedge", place / "share")


INSTALLERS: list[Callable[[Shop, Path], Installed]] = [by_pip, by_pipx, by_uv_tool, by_uv_pip]


@pytest.fixture
def home(model_control: ModelControl) -> Generator[Home]:
    with new_home(model_control) as home:
        yield home


@pytest.fixture
def env(shop: Shop, home: Home) -> dict[str, str]:
    """A shell on that machine, which knows a model."""
    own = {name: value for name, value in home.env.items() if name.startswith(("XDG_", "KEDGE_", "OPENAI_", "NO_"))}
    return {**shop.env(home.directory), **own}


@pytest.mark.parametrize("install", INSTALLERS)
def test_a_clean_machine_has_the_command_a_whole_run_and_completion_where_shells_look(
    install: Callable[[Shop, Path], Installed], shop: Shop, env: dict[str, str], tmp_path: Path
) -> None:
    installed = install(shop, tmp_path)
    work = tmp_path / "work"
    work.mkdir()

    def kedge(*args: str) -> str:
        return said(str(installed.kedge), *args, env=env, cwd=work)

    assert kedge("--version") == f"kedge {VERSION}\n"
    assert kedge("--help").startswith("usage: kedge ")
    write = '[{"name": "write", "input": {"path": "new.txt", "content": "by a tool\\n"}}]'
    assert kedge("run", "--yes", "-q", asking(tool_calls=write, text="it is written")) == "it is written\n"
    assert (work / "new.txt").read_text() == "by a tool\n"
    seen = kedge("doctor")
    assert f"ok    server {VERSION} at " in seen
    assert "ripgrep" in seen  # the one that is installed with it: this machine has no other in its path
    assert "has stopped" in kedge("serve", "--stop")
    assert [place for place in PLACES.values() if not (installed.share.parent / place).is_file()] == []


def test_nothing_is_written_where_it_is_installed(shop: Shop, env: dict[str, str], tmp_path: Path) -> None:
    kedge, _ = by_uv_tool(shop, tmp_path)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    said(str(kedge), "run", "-q", asking(text="hello"), env={**env, "PYTHONDONTWRITEBYTECODE": "1"})
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


@pytest.mark.parametrize("shell", [shell for shell in ("bash", "zsh") if shutil.which(shell)])
async def test_a_person_completes_a_command(shop: Shop, tmp_path: Path, shell: str) -> None:
    _, share = by_uv_tool(shop, tmp_path)
    script = share.parent / PLACES[shell]
    options, ready = {
        "bash": (["--noprofile", "--norc", "-i"], f". '{script}'"),
        "zsh": (["-f", "-i"], f"fpath=('{script.parent}' $fpath); autoload -U compinit; compinit -u -D"),
    }[shell]
    env = {**shop.env(tmp_path), "PS1": "$ ", "INPUTRC": "/dev/null"}
    async with Terminal([shell, *options], env=env, cwd=tmp_path) as terminal:
        terminal.type(f"{ready}; echo re''ady\r")
        await terminal.shows("\nready")
        terminal.type("kedge sess\t")
        await terminal.shows("kedge session")
        terminal.type("ren\t")
        await terminal.shows("kedge session rename")
