"""Whoever types what the pages say gets what they say: real commands, a real server, and a scripted model."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Generator
from pathlib import Path

import pytest

from tests.docs.pages import Block, blocks
from tests.docs.shell import Shell
from tests.e2e.home import Home, new_home
from tests.support.model_control import ModelControl

PAGES = (
    "README.md",
    "docs/getting-started.md",
    "docs/scripting.md",
    "docs/tools.md",
    "docs/providers.md",
    "docs/configuration.md",
    "docs/server.md",
    "docs/http-api.md",
    "docs/undo.md",
)
# Reasons that are no excuse for a page's author: these really cannot be run here.
REASONS = {
    "needs a key": "and would cost money",
    "needs a model server": "of the reader's own",
    "installs": "into the environment of whoever runs the tests",
    "runs all tests": "this one too",
    "opens a port": "which another test may have",
    "needs another machine": "",
    "opens the interface": "which needs a terminal",
    "is a configuration of another program": "",
}


@pytest.fixture
def home(model_control: ModelControl) -> Generator[Home]:
    with new_home(model_control) as home:
        yield home


@pytest.fixture
def shell(home: Home, tmp_path: Path) -> Generator[Shell]:
    workspace = tmp_path / "project"
    workspace.mkdir()
    (workspace / "build.log").write_text("error: the date has no zone\n")
    env = {**home.env, "PATH": f"{Path(sys.executable).parent}:{home.env['PATH']}", "LANG": "C.UTF-8"}
    shell = Shell(workspace, tmp_path, env)
    yield shell
    shell.close()


@pytest.mark.parametrize("page", PAGES)
def test_every_command_of_a_page_does_what_the_page_says(page: str, shell: Shell, model_control: ModelControl) -> None:
    if page == "docs/http-api.md" and shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    for block in blocks(page):
        if block.reason:
            continue
        model_control.reset()
        model_control.plan(**block.plan)
        play(block, shell)


def play(block: Block, shell: Shell) -> None:
    for step in block.steps:
        code, printed = shell.type(step)
        told = f"{block.place}\n$ {step.command}\n{printed}[exit {code}]"
        if step.printed is None:
            assert code == 0, told
        else:
            assert step.expects().fullmatch(printed), f"{told}\nThe page says:\n{step.printed}"


@pytest.mark.parametrize("page", PAGES)
def test_a_page_has_commands_and_says_why_some_are_not_run(page: str) -> None:
    found = blocks(page)
    assert [block for block in found if not block.reason], f"nothing of {page} is run"
    assert {block.reason for block in found} - {""} <= REASONS.keys()
