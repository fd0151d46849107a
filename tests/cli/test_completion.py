"""Completion by a real shell: commands, and the options of the interface where no command is named."""

from __future__ import annotations

import subprocess
import sys

import pytest

from kedge.cli.common import CONNECT_VALUES
from kedge.cli.completion import own_options
from kedge.cli.tui import HELP


@pytest.fixture(scope="module")
def script() -> str:
    command = [sys.executable, "-m", "kedge", "completion", "bash"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def completed(script: str, *words: str) -> set[str]:
    typed = " ".join(f"'{word}'" for word in words)
    ask = f'{script}\nCOMP_WORDS=({typed}); COMP_CWORD={len(words) - 1}; _kedge; printf "%s\\n" "${{COMPREPLY[@]}}"'
    told = subprocess.run(["bash", "-c", ask], capture_output=True, text=True, check=True)
    return set(told.stdout.split())


def test_kedge_alone_completes_commands_and_the_options_of_the_interface(script: str) -> None:
    assert {"run", "session"} <= completed(script, "kedge", "")
    assert completed(script, "kedge", "--conti") == {"--continue"}
    assert {"--session", "--mode"} <= completed(script, "kedge", "--yolo", "--")
    assert "--continue" in completed(script, "kedge", "run", "--c")


def test_help_explains_the_options_of_the_interface() -> None:
    of_all = {*CONNECT_VALUES, "--help", "--version"}
    assert [option for option in own_options() if option not in HELP and option not in of_all] == []
