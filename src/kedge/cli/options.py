"""Options of a command line, for commands that have to start fast: names and values, nothing more."""

from __future__ import annotations


class UsageError(Exception):
    """One line: what is wrong with the arguments."""


def named(*options: str) -> dict[str, str]:
    """Every spelling of each option, with its name: `-q --quiet` are both "quiet"."""
    return {spelling: option.split("--")[-1] for option in options for spelling in option.split()}


class Options:
    """Flags and options with a value, wherever they stand between the words; see `named`."""

    def __init__(self, argv: list[str], *, flags: dict[str, str], values: dict[str, str]) -> None:
        self.words: list[str] = []  # what is no option, in order
        self._flags = flags
        self._values = values
        self._given: dict[str, str] = {}
        self._all: dict[str, list[str]] = {}
        self._read(list(argv))

    def has(self, name: str) -> bool:
        return name in self._given

    def get(self, name: str) -> str | None:
        return self._given.get(name)

    def all(self, name: str) -> list[str]:
        """Every value of an option that may be given several times, in order."""
        return self._all.get(name, [])

    def whole(self, name: str, least: int = 1, most: int = 1_000_000) -> int | None:
        """A whole number."""
        text = self._given.get(name)
        if text is None:
            return None
        if not text.isascii() or not text.isdecimal() or not least <= int(text[:10]) <= most:
            raise UsageError(f"--{name} takes a whole number from {least} to {most}, and {text!r} is none")
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
            raise UsageError(f"--{name} takes dollars, like 0.50, and {text!r} is none")
        return value

    def seconds(self, name: str, default: float | None = None) -> float | None:
        text = self._given.get(name)
        if text is None:
            return default
        try:
            value = float(text)
        except ValueError:
            value = -1.0
        if not 0 <= value < 1e9:
            raise UsageError(f"{text!r} is no number of seconds")
        return value

    def choice(self, name: str, choices: tuple[str, ...]) -> str | None:
        text = self._given.get(name)
        if text is not None and text not in choices:
            raise UsageError(f"{text!r} is none of {', '.join(choices)}")
        return text

    def _read(self, left: list[str]) -> None:
        while left:
            arg = left.pop(0)
            if arg == "--":
                self.words += left
                return
            if arg.startswith("--"):
                self._long(arg, left)
            elif arg.startswith("-") and arg != "-":
                self._short(arg, left)
            else:
                self.words.append(arg)

    def _long(self, arg: str, left: list[str]) -> None:
        spelling, equals, value = arg.partition("=")
        if spelling in self._values:
            self._take(spelling, value if equals else self._next(spelling, left))
        elif spelling in self._flags and not equals:
            self._given[self._flags[spelling]] = spelling
        elif spelling in self._flags:
            raise UsageError(f"{spelling} takes no value")
        else:
            raise _unknown(spelling)

    def _short(self, arg: str, left: list[str]) -> None:
        """`-q`, `-qy`, `-m NAME`, `-mNAME`."""
        for place, letter in enumerate(arg[1:], 2):
            spelling = f"-{letter}"
            if spelling in self._values:
                self._take(spelling, arg[place:] or self._next(spelling, left))
                return
            if spelling not in self._flags:
                raise _unknown(spelling if len(arg) > 2 else arg)
            self._given[self._flags[spelling]] = spelling

    def _take(self, spelling: str, value: str) -> None:
        name = self._values[spelling]
        self._given[name] = value
        self._all.setdefault(name, []).append(value)

    def _next(self, spelling: str, left: list[str]) -> str:
        if not left:
            raise UsageError(f"{spelling} needs a value")
        return left.pop(0)


def _unknown(spelling: str) -> UsageError:
    return UsageError(f"unknown option {spelling!r} (after '--' everything is text)")
