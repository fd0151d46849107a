"""`kedge completion`: print a completion script for a shell, made from the option tables of the commands."""

from __future__ import annotations

from importlib import import_module
from shlex import quote
from types import ModuleType

from kedge.cli.common import CONNECT_VALUES, EXIT_OK, EXIT_USAGE, HELP_FLAG
from kedge.cli.main import COMMANDS
from kedge.cli.output import print_error

HELP = """\
usage: kedge completion bash | zsh | fish

Print a completion script for a shell. (Kedge also installs it under share/ of its environment.) To use it:

  bash   eval "$(kedge completion bash)"                     in ~/.bashrc
  zsh    eval "$(kedge completion zsh)"                      in ~/.zshrc, after compinit
  fish   kedge completion fish > ~/.config/fish/completions/kedge.fish
"""

FLAGS: dict[str, str] = {}
CONNECTS = False
OPTION_MODULES = {"run": "kedge.cli.run_options"}  # where they are not in the command's own module

# Bash splits words at colons, which model names contain: the pieces are joined here, and the part up to the last colon
# is removed from the answers. Words without an answer are completed as file names.
BASH = """\
_kedge() {{
    local at=$COMP_CWORD word="${{COMP_WORDS[COMP_CWORD]}}" words=""
    while [ "$at" -gt 2 ] && [[ "$word" == :* || "${{COMP_WORDS[at-1]}}" == : ]]; do
        at=$((at - 1))
        word="${{COMP_WORDS[at]}}$word"
    done
    COMPREPLY=()
    if [ "$at" -eq 1 ]; then
        words="{commands} {own}"
    else
        case "${{COMP_WORDS[1]}}" in
{cases}
            -*) words="{own}" ;;
        esac
    fi
    case "${{COMP_WORDS[at-1]}}" in
        -m|--model) words="$(kedge models --names 2>/dev/null)" ;;
        *)
            case "$at,${{COMP_WORDS[1]}},$word" in
                1,*|*,session,*|*,runs,*|*,config,*|*,mcp,*|*,completion,*|*,-*) ;;
                *) return ;;
            esac ;;
    esac
    COMPREPLY=($(compgen -W "$words" -- "$word"))
    local typed="${{word%"${{word##*:}}"}}"
    COMPREPLY=("${{COMPREPLY[@]#"$typed"}}")
}}
complete -o default -F _kedge kedge
"""

# In zsh's function path the file is the body of the function; sourced, it registers the function.
ZSH = """\
#compdef kedge
_kedge() {{
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
    elif [[ "$PREFIX" == -* || "$words[2]" == (session|runs|config|mcp|completion) ]]; then
        compadd -- $choices
    else
        _files
    fi
}}
if [[ "$funcstack[1]" == _kedge ]]; then
    _kedge "$@"
else
    compdef _kedge kedge
fi
"""


def run(argv: list[str]) -> int:
    match argv:
        case ["-h" | "--help"]:
            print(HELP, end="")
        case [shell] if shell in ACTIONS:
            print(ACTIONS[shell](), end="")
        case _:
            problem = f"Unknown shell {argv[0]!r}" if len(argv) == 1 else "Name one shell"
            return print_error(f"{problem}. Use kedge completion bash, zsh or fish", EXIT_USAGE)
    return EXIT_OK


def list_words(name: str) -> list[str]:
    """The words that may follow a command: its subcommands, then its options."""
    module = import_module(OPTION_MODULES.get(name) or COMMANDS[name][0])
    return [*getattr(module, "ACTIONS", ()), *_list_options(module)]


def _list_options(module: ModuleType) -> list[str]:
    """Long options of a command; `CONNECTS` is whether it takes those for connecting to a server."""
    options = {**module.FLAGS, **getattr(module, "VALUES", {}), **HELP_FLAG}
    if getattr(module, "CONNECTS", True):
        options |= CONNECT_VALUES
    return sorted(option for option in options if option.startswith("--"))


def list_own_options() -> list[str]:
    """The options of `kedge` without a command."""
    return [*_list_options(import_module("kedge.cli.tui")), "--version"]


def _bash() -> str:
    cases = "\n".join(f'            {name}) words="{" ".join(list_words(name))}" ;;' for name in COMMANDS)
    return BASH.format(commands=" ".join(COMMANDS), cases=cases, own=" ".join(list_own_options()))


def _zsh() -> str:
    commands = "\n".join(f"        {quote(f'{name}:{text}')}" for name, (_, text) in COMMANDS.items())
    cases = "\n".join(f"        {name}) choices=({' '.join(list_words(name))}) ;;" for name in COMMANDS)
    return ZSH.format(commands=commands, cases=cases, own=" ".join(list_own_options()))


def _fish() -> str:
    lines = [
        "complete -c kedge -n __fish_use_subcommand -f",
        "complete -c kedge -s m -l model -x -a '(kedge models --names 2>/dev/null)'",
    ]
    lines += [f"complete -c kedge -n __fish_use_subcommand -l {option[2:]}" for option in list_own_options()]
    for name, (_, text) in COMMANDS.items():
        quoted = text.replace("\\", "\\\\").replace("'", "\\'")  # unlike other shells, fish takes them inside quotes
        lines.append(f"complete -c kedge -n __fish_use_subcommand -a {name} -d '{quoted}'")
        for word in list_words(name):
            given = f"-l {word[2:]}" if word.startswith("--") else f"-f -a {word}"
            lines.append(f"complete -c kedge -n '__fish_seen_subcommand_from {name}' {given}")
    return "\n".join(lines) + "\n"


ACTIONS = {"bash": _bash, "zsh": _zsh, "fish": _fish}
