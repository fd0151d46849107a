"""What could be completed where the cursor is, and what fits: pure, so that every key can ask."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

WishKind = Literal["file", "command", "argument"]

# An `@` begins a name at the start of a word, as far as the cursor; with a quote, names may have spaces.
_FILE = re.compile(r'(?:^|(?<=\s))@(?:"(?P<quoted>[^"]*)|(?P<plain>[^\s"]*))$')
_COMMAND = re.compile(r"^/(?P<name>[\w:-]*)$")
_ARGUMENT = re.compile(r"^/(?P<name>[\w:-]+)\s+(?P<typed>\S*)$")


class Wish(NamedTuple):
    kind: WishKind
    start: int  # the column where what is typed begins, `@` and `/` included
    typed: str
    command: str = ""  # whose argument it is


class Choice(NamedTuple):
    """`value` is what is inserted. One that `goes_on` is not the end: a directory."""

    value: str
    shown: str
    help: str = ""
    goes_on: bool = False


def wish_at(line: str, row: int) -> Wish | None:
    """`line` is the line of the cursor, up to it."""
    if found := _FILE.search(line):
        return Wish("file", found.start(), found["quoted"] if found["plain"] is None else found["plain"])
    if row == 0 and (found := _COMMAND.match(line)):
        return Wish("command", 0, found["name"])
    if row == 0 and (found := _ARGUMENT.match(line)):
        return Wish("argument", found.start("typed"), found["typed"], found["name"])
    return None


def commands_for(typed: str, commands: Iterable[tuple[str, str]]) -> list[Choice]:
    """The one that it names, those that begin like it, then those that hold its letters in their order."""
    wanted = typed.casefold()
    ranked = sorted(
        (name.casefold() != wanted, not name.casefold().startswith(wanted), place, name, about)
        for place, (name, about) in enumerate(commands)
        if _holds(name.casefold(), wanted)
    )
    return [Choice(f"/{name} ", f"/{name}", about) for _, _, _, name, about in ranked]


def files_for(names: Sequence[str]) -> list[Choice]:
    return [Choice(mention(name), name, goes_on=name.endswith("/")) for name in names]


def arguments_for(typed: str, values: Iterable[tuple[str, str]]) -> list[Choice]:
    wanted = typed.casefold()
    fitting = [(value, about) for value, about in values if _holds(value.casefold(), wanted)]
    return [Choice(f"{value} ", value, about) for value, about in fitting]


def mention(name: str) -> str:
    """As it stands in a prompt. The quote of a directory stays open: more of the name follows."""
    if re.search(r"\s", name):
        return f'@"{name}' if name.endswith("/") else f'@"{name}" '
    return f"@{name}" if name.endswith("/") else f"@{name} "


def _holds(text: str, typed: str) -> bool:
    rest = iter(text)
    return all(char in rest for char in typed)
