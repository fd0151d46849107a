"""`kedge completion`: a script that lets the shell complete commands and options, made from their own tables."""

from __future__ import annotations

from importlib import import_module
from shlex import quote
from types import ModuleType

from kedge.cli.common import CONNECT_VALUES, EXIT_OK, EXIT_USAGE
from kedge.cli.main import COMMANDS
from kedge.cli.output import complain

HELP = """\
usage: kedge completion bash | zsh | fish

Prints a script for that shell, which is installed with Kedge, too, under share/ of its environment. To use it:

  bash   eval "$(kedge completion bash)"                     in ~/.bashrc
  zsh    eval "$(kedge completion zsh)"                      in ~/.zshrc, after compinit
  fish   kedge completion fish > ~/.config/fish/completions/kedge.fish
"""

WORDS = ("bash", "zsh", "fish")
OPTIONS_OF = {"run": "kedge.cli.run_options"}  # of the others they are where the command is

# Bash splits words at colons, and names of models have some: they are put together here, and what was typed of them
# before the last colon is taken off the answers. What is left without an answer is completed as the name of a file.
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
                1,*|*,session,*|*,config,*|*,completion,*|*,-*) ;;
                *) return ;;
            esac ;;
    esac
    COMPREPLY=($(compgen -W "$words" -- "$word"))
    local typed="${{word%"${{word##*:}}"}}"
    COMPREPLY=("${{COMPREPLY[@]#"$typed"}}")
}}
complete -o default -F _kedge kedge
"""

# Found in the path of functions, the file is the function; sourced, it makes it known.
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
    elif [[ "$PREFIX" == -* || "$words[2]" == (session|config|completion) ]]; then
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
    commands = "\n".join(f"        {quote(f'{name}:{text}')}" for name, (_, text) in COMMANDS.items())
    cases = "\n".join(f"        {name}) choices=({' '.join(words_of(name))}) ;;" for name in COMMANDS)
    return ZSH.format(commands=commands, cases=cases, own=" ".join(own_options()))


def _fish() -> str:
    lines = [
        "complete -c kedge -n __fish_use_subcommand -f",
        "complete -c kedge -s m -l model -x -a '(kedge models --names 2>/dev/null)'",
    ]
    lines += [f"complete -c kedge -n __fish_use_subcommand -l {option[2:]}" for option in own_options()]
    for name, (_, text) in COMMANDS.items():
        lines.append(f"complete -c kedge -n __fish_use_subcommand -a {name} -d {_fish_quoted(text)}")
        for word in words_of(name):
            given = f"-l {word[2:]}" if word.startswith("--") else f"-f -a {word}"
            lines.append(f"complete -c kedge -n '__fish_seen_subcommand_from {name}' {given}")
    return "\n".join(lines) + "\n"


def _fish_quoted(text: str) -> str:
    """Fish takes a backslash inside of single quotes, and no other shell's ways around one."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
