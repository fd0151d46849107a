"""The options of a command as it reads them itself: known ones with and without values, and what is left over."""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from kedge.tools.permissions.words import Word


def names(text: str) -> frozenset[str]:
    return frozenset(text.split())


def dashed(text: str) -> frozenset[str]:
    """Long options, written without their dashes."""
    return frozenset(f"--{name}" for name in text.split())


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What a command may be given. An option that is not here makes it unknown."""

    short: str = ""
    short_valued: str = ""  # -n 5 or -n5
    short_optional: str = ""  # -M or -M50
    long: frozenset[str] = frozenset()
    long_valued: frozenset[str] = frozenset()  # --name=value or --name value
    long_optional: frozenset[str] = frozenset()  # --name or --name=value
    is_counted: bool = False  # -5 is an option
    is_single: bool = False  # long ones begin with one dash, and short ones are not joined
    needs_equals: bool = False  # long ones have their value after =
    stops: bool = False  # the first word that is no option ends them


class Given(msgspec.Struct, frozen=True):
    options: tuple[tuple[str, Word | None], ...]
    rest: tuple[Word, ...]

    def has(self, *names: str) -> bool:
        return any(name in names for name, _ in self.options)

    def values(self, *names: str) -> list[Word]:
        return [value for name, value in self.options if name in names and value is not None]


def read_options(words: Sequence[Word], known: Options) -> Given | None:
    """None: a word is not known that may be an option, or an option is not known."""
    options: list[tuple[str, Word | None]] = []
    rest: list[Word] = []
    index = 0
    while index < len(words):
        word = words[index]
        index += 1
        if word.text is None:
            return None
        text = word.text
        if text == "--":
            rest += words[index:]
            break
        if not text.startswith("-") or text == "-":
            rest.append(word)
            if known.stops:
                rest += words[index:]
                break
            continue
        if word.is_glob:
            return None
        if known.is_counted and re.fullmatch(r"-\d+", text):
            options.append((text, None))
            continue
        if text.startswith("--") or known.is_single:
            name, equals, value = text.partition("=")
            if equals and name in known.long_valued | known.long_optional:
                options.append((name, Word(value)))
            elif not equals and name in known.long | known.long_optional:
                options.append((name, None))
            elif not equals and name in known.long_valued and index < len(words) and not known.needs_equals:
                if not _is_one(words[index]):
                    return None
                options.append((name, words[index]))
                index += 1
            else:
                return None
            continue
        for place, letter in enumerate(text[1:], 1):
            if letter in known.short_optional:
                options.append((f"-{letter}", Word(text[place + 1 :])))
                break
            if letter in known.short_valued:
                if text[place + 1 :]:
                    options.append((f"-{letter}", Word(text[place + 1 :])))
                elif index < len(words) and _is_one(words[index]):
                    options.append((f"-{letter}", words[index]))
                    index += 1
                else:
                    return None
                break
            if letter not in known.short:
                return None
            options.append((f"-{letter}", None))
    return Given(tuple(options), tuple(rest))


def _is_one(word: Word) -> bool:
    """Whether an option's value is one word for certain: of `head -n $x`, all but the first might be options again."""
    return not word.is_glob and (word.text is not None or word.is_one)
