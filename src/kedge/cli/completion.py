"""`kedge completion`: a script that lets the shell complete commands and options, made from their own tables."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from kedge.cli.common import CONNECT_VALUES, EXIT_OK, EXIT_USAGE, complain
from kedge.cli.main import COMMANDS

HELP = """\
usage: kedge completion bash | zsh | fish

Prints a script for that shell. To use it:

  bash   kedge completion bash > ~/.local/share/bash-completion/completions/kedge
  zsh    kedge completion zsh > "${fpath[1]}/_kedge"
  fish   kedge completion fish > ~/.config/fish/completions/kedge.fish
"""

WORDS = ("bash", "zsh", "fish")
OPTIONS_OF = {"run": "kedge.cli.run_options"}  # of the others they are where the command is

BASH = """\
_kedge() {{
    local word="${{COMP_WORDS[COMP_CWORD]}}" words=""
    if [ "$COMP_CWORD" -eq 1 ]; then
        words="{commands} {own}"
    else
        case "${{COMP_WORDS[1]}}" in
{cases}
            -*) words="{own}" ;;
        esac
    fi
    case "${{COMP_WORDS[COMP_CWORD-1]}}" in
        -m|--model) COMPREPLY=($(compgen -W "$(kedge models --names 2>/dev/null)" -- "$word")); return ;;
    esac
    case "$COMP_CWORD,${{COMP_WORDS[1]}},$word" in
        1,*|*,session,*|*,config,*|*,completion,*|*,-*) COMPREPLY=($(compgen -W "$words" -- "$word")) ;;
        *) COMPREPLY=($(compgen -f -- "$word")) ;;
    esac
}}
complete -F _kedge kedge
"""

ZSH = """\
#compdef kedge
local -a commands choices
commands=(
{commands}
)
if (( CURRENT == 2 )) && [[ "$PREFIX" != -* ]]; then
    _describe command commands
    return
fi
case "$words[2]" in
{cases}
    -*) choices=({own}) ;;
esac
if [[ "$words[CURRENT-1]" == (-m|--model) ]]; then
    compadd -- ${{(f)"$(kedge models --names 2>/dev/null)"}}
elif [[ "$PREFIX" == -* || "$words[2]" == (session|config|completion) ]]; then
    compadd -- $choices
else
    _files
fi
"""


def run(argv: list[str]) -> int:
    match argv:
        case ["-h" | "--help"]:
            print(HELP, end="")
            return EXIT_OK
        case ["bash"]:
            print(_bash(), end="")
        case ["zsh"]:
            print(_zsh(), end="")
        case ["fish"]:
            print(_fish(), end="")
        case _:
            return complain("say for which shell: kedge completion bash, zsh or fish", EXIT_USAGE)
    return EXIT_OK


def words_of(name: str) -> list[str]:
    """What may follow a command: its subcommands, then its options."""
    module = import_module(OPTIONS_OF.get(name) or COMMANDS[name][0])
    if fixed := getattr(module, "WORDS", None):
        return list(fixed)
    return [*getattr(module, "ACTIONS", {}), *_options(module)]


def _options(module: ModuleType) -> list[str]:
    options = {**getattr(module, "FLAGS", {}), **getattr(module, "VALUES", {}), **CONNECT_VALUES, "--help": "help"}
    return sorted(option for option in options if option.startswith("--"))


def own_options() -> list[str]:
    """What may follow `kedge` itself: the interface's options."""
    return [*_options(import_module("kedge.cli.tui")), "--version"]


def _bash() -> str:
    cases = "\n".join(f'            {name}) words="{" ".join(words_of(name))}" ;;' for name in COMMANDS)
    return BASH.format(commands=" ".join(COMMANDS), cases=cases, own=" ".join(own_options()))


def _zsh() -> str:
    commands = "\n".join(f"    '{name}:{text}'" for name, (_, text) in COMMANDS.items())
    cases = "\n".join(f"    {name}) choices=({' '.join(words_of(name))}) ;;" for name in COMMANDS)
    return ZSH.format(commands=commands, cases=cases, own=" ".join(own_options()))


def _fish() -> str:
    lines = [
        "complete -c kedge -n __fish_use_subcommand -f",
        "complete -c kedge -s m -l model -x -a '(kedge models --names 2>/dev/null)'",
    ]
    lines += [f"complete -c kedge -n __fish_use_subcommand -l {option[2:]}" for option in own_options()]
    for name, (_, text) in COMMANDS.items():
        lines.append(f"complete -c kedge -n __fish_use_subcommand -a {name} -d '{text}'")
        for word in words_of(name):
            given = f"-l {word[2:]}" if word.startswith("--") else f"-f -a {word}"
            lines.append(f"complete -c kedge -n '__fish_seen_subcommand_from {name}' {given}")
    return "\n".join(lines) + "\n"
