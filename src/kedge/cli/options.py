"""The option parser of all commands: flags, options with a value, and words, in any order. Starts fast."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TypeVar

    Action = TypeVar("Action")


class UsageError(Exception):
    """One line: what is wrong with the arguments."""


def named(*options: str) -> dict[str, str]:
    """Map every spelling of each option to its name: `-q --quiet` are both "quiet"."""
    return {spelling: option.split("--")[-1] for option in options for spelling in option.split()}


class Options:
    """`flags` and `values` map spellings to names, see `named`. Raises `UsageError` for anything else."""

    def __init__(self, argv: list[str], *, flags: dict[str, str], values: dict[str, str]) -> None:
        self.words: list[str] = []  # arguments that are not options, in order
        self.has_end = False  # whether `--` was given: all words after it are no options
        self._flags = flags
        self._values = values
        self._given: dict[str, str] = {}  # the last value of each option
        self._all: dict[str, list[str]] = {}
        self._read(list(argv))

    def has(self, name: str) -> bool:
        return name in self._given

    def get(self, name: str) -> str | None:
        return self._given.get(name)

    def all(self, name: str) -> list[str]:
        """Every value of an option that may be given several times, in order."""
        return self._all.get(name, [])

    def integer(self, name: str, least: int = 1, most: int = 1_000_000) -> int | None:
        text = self._given.get(name)
        if text is None:
            return None
        if not text.isascii() or not text.isdecimal() or not least <= int(text[:10]) <= most:
            raise UsageError(f"Invalid --{name} {text!r} (expected a whole number from {least} to {most})")
        return int(text)

    def dollars(self, name: str) -> float | None:
        text = self._given.get(name)
        if text is None:
            return None
        try:
            value = float(text.removeprefix("$"))
        except ValueError:
            value = 0.0
        if not 0 < value < 1e9:
            raise UsageError(f"Invalid --{name} {text!r} (expected dollars, like 0.50)")
        return value

    def seconds(self, name: str) -> float | None:
        text = self._given.get(name)
        return None if text is None else parse_seconds(text, f"--{name}")

    def choice(self, name: str, choices: tuple[str, ...]) -> str | None:
        text = self._given.get(name)
        if text is not None and text not in choices:
            raise UsageError(f"Invalid --{name} {text!r} (choose {', '.join(choices[:-1])} or {choices[-1]})")
        return text

    def subcommand(self, actions: dict[str, Action], *, otherwise: str = "") -> tuple[Action, list[str]]:
        """Return the action that the first word names, and the other words. Without words it is `otherwise`."""
        name, *words = self.words or [otherwise]
        if name not in actions:
            problem = f"Unknown subcommand {name!r}" if name else "Missing subcommand"
            raise UsageError(f"{problem}. Use one of: {', '.join(actions)}")
        return actions[name], words

    def check_no_words(self) -> None:
        if self.words:
            raise UsageError(f"Unexpected argument {self.words[0]!r}")

    def _read(self, left: list[str]) -> None:
        while left:
            arg = left.pop(0)
            if arg == "--":
                self.words += left
                self.has_end = True
                return
            if arg.startswith("--"):
                self._read_long(arg, left)
            elif arg.startswith("-") and arg != "-":
                self._read_short(arg, left)
            else:
                self.words.append(arg)

    def _read_long(self, arg: str, left: list[str]) -> None:
        spelling, equals, value = arg.partition("=")
        if spelling in self._values:
            self._set(spelling, value if equals else self._next(spelling, left))
        elif spelling in self._flags and not equals:
            self._given[self._flags[spelling]] = spelling
        elif spelling in self._flags:
            raise UsageError(f"{spelling} takes no value")
        else:
            raise _make_unknown(spelling)

    def _read_short(self, arg: str, left: list[str]) -> None:
        """`-q`, `-qy`, `-m NAME`, `-mNAME`."""
        for index, letter in enumerate(arg[1:], 2):
            spelling = f"-{letter}"
            if spelling in self._values:
                self._set(spelling, arg[index:] or self._next(spelling, left))
                return
            if spelling not in self._flags:
                raise _make_unknown(spelling if len(arg) > 2 else arg)
            self._given[self._flags[spelling]] = spelling

    def _set(self, spelling: str, value: str) -> None:
        name = self._values[spelling]
        self._given[name] = value
        self._all.setdefault(name, []).append(value)

    def _next(self, spelling: str, left: list[str]) -> str:
        if not left:
            raise UsageError(f"{spelling} needs a value")
        return left.pop(0)


def parse_seconds(text: str, name: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1e9:
        raise UsageError(f"Invalid {name} {text!r} (expected a number of seconds, 0 or more)")
    return value


def _make_unknown(spelling: str) -> UsageError:
    return UsageError(f"Unknown option {spelling!r} (put text that starts with '-' after '--')")
