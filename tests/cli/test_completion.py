"""Completion: every command in every shell's script, which its grammar accepts; and what a real bash answers."""

from __future__ import annotations

import re
import shlex
import subprocess

import pytest
import tree_sitter_zsh
from tree_sitter import Language, Parser

from kedge.cli import completion
from kedge.cli.common import CONNECT_VALUES
from kedge.cli.completion import list_own_options, list_words
from kedge.cli.main import COMMANDS
from kedge.cli.tui import HELP


@pytest.fixture
def script(request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]) -> str:
    assert completion.run([getattr(request, "param", "bash")]) == 0
    return capsys.readouterr().out


def completed(script: str, *words: str) -> set[str]:
    typed = " ".join(f"'{word}'" for word in words)
    ask = f'{script}\nCOMP_WORDS=({typed}); COMP_CWORD={len(words) - 1}; _kedge; printf "%s\\n" "${{COMPREPLY[@]}}"'
    told = subprocess.run(["bash", "-c", ask], capture_output=True, text=True, check=True)
    return set(told.stdout.split())


def test_kedge_alone_completes_commands_and_the_options_of_the_interface(script: str) -> None:
    assert set(COMMANDS) <= completed(script, "kedge", "")
    assert completed(script, "kedge", "ses") == {"session"}
    assert completed(script, "kedge", "--conti") == {"--continue"}
    assert {"--session", "--mode"} <= completed(script, "kedge", "--yolo", "--")


def test_a_command_completes_its_options_and_its_subcommands(script: str) -> None:
    assert "--continue" in completed(script, "kedge", "run", "--c")
    assert completed(script, "kedge", "run", "--time") == {"--timeout"}
    assert completed(script, "kedge", "session", "ren") == {"rename"}


def test_what_is_no_option_is_left_to_the_shell_which_knows_files(script: str) -> None:
    assert completed(script, "kedge", "run", "") == set()
    assert "complete -o default " in script


def test_the_name_of_a_model_is_completed_across_its_colon(script: str) -> None:
    kedge = "kedge() { printf '%s\\n' ollama/qwen3:4b ollama/qwen3:8b openai/o; }\n"
    asked = ("kedge", "run", "-m")
    assert completed(kedge + script, *asked, "ollama/q") == {"ollama/qwen3:4b", "ollama/qwen3:8b"}
    assert completed(kedge + script, *asked, "ollama/qwen3", ":") == {"4b", "8b"}
    assert completed(kedge + script, *asked, "ollama/qwen3", ":", "8") == {"8b"}
    assert completed(kedge + script, "kedge", "-m", "op") == {"openai/o"}


@pytest.mark.parametrize("script", ["zsh"], indirect=True)
def test_zsh_can_read_its_script_and_finds_every_command_in_it(script: str) -> None:
    tree = Parser(Language(tree_sitter_zsh.language())).parse(script.encode())
    assert not tree.root_node.has_error, tree.root_node
    for name in COMMANDS:
        assert re.search(rf"^ +'{name}:", script, re.MULTILINE), name
        assert f"        {name}) choices=({' '.join(list_words(name))}) ;;\n" in script


@pytest.mark.parametrize("script", ["fish"], indirect=True)
def test_fish_can_read_its_script_and_finds_every_command_in_it(script: str) -> None:
    # Of fish's grammar the script has words and quotes alone, and of these only \' is not a POSIX shell's.
    lines = [shlex.split(line.replace(r"\'", "`")) for line in script.splitlines()]
    assert all(line[:3] == ["complete", "-c", "kedge"] for line in lines), lines
    offered = {(line[4], line[-1]) for line in lines if line[3] == "-n"}
    for name in COMMANDS:
        assert any(line[4:7] == ["__fish_use_subcommand", "-a", name] for line in lines), name
        assert {word.removeprefix("--") for word in list_words(name)} == {
            word for seen, word in offered if seen == f"__fish_seen_subcommand_from {name}"
        }


def test_help_explains_the_options_of_the_interface() -> None:
    of_all = {*CONNECT_VALUES, "--help", "--version"}
    assert [option for option in list_own_options() if option not in HELP and option not in of_all] == []
