"""`${NAME}` and `${NAME:-default}` in texts of the configuration. `$$` is a dollar sign, and so is a lone `$`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, cast

from kedge.config.keys import Key

_REFERENCE = re.compile(r"\$\$|\$\{(?:([A-Za-z_][A-Za-z0-9_]*)(?::-([^{}]*))?\})?")


class Unset(Exception):
    """One line: which variable is missing, and what to do."""


def names_in(text: str) -> list[str]:
    """The variables that a text refers to."""
    return [found[1] for found in _REFERENCE.finditer(text) if found[1]]


def has_references(value: Any) -> bool:
    match value:
        case str():
            return any(found[0] != "$$" for found in _REFERENCE.finditer(value))
        case list():
            return any(map(has_references, cast("list[Any]", value)))
        case dict():
            return any(map(has_references, cast("dict[str, Any]", value).values()))
        case _:
            return False


def expanded(value: Any, env: Mapping[str, str], path: Key, complain: Callable[[Key, str], None]) -> Any:
    """The value with every text in it expanded; what cannot be is told and left as it is."""
    match value:
        case str():
            try:
                return expand_text(value, env)
            except Unset as error:
                complain(path, str(error))
                return value
        case list():
            elements = cast("list[Any]", value)
            return [expanded(each, env, (*path, place), complain) for place, each in enumerate(elements)]
        case dict():
            fields = cast("dict[str, Any]", value)
            return {name: expanded(each, env, (*path, name), complain) for name, each in fields.items()}
        case _:
            return value


def expand_text(text: str, env: Mapping[str, str]) -> str:
    def replaced(found: re.Match[str]) -> str:
        name, default = found.groups()
        if found[0] == "$$":
            return "$"
        if name is None:
            raise Unset("'${' begins the name of a variable, as in ${NAME}; write $${ for the characters themselves")
        value = env.get(name)
        if default is not None:
            return value or default
        if value is None:
            raise Unset(f"the variable {name} is not set; set it, or write ${{{name}:-DEFAULT}}")
        return value

    return _REFERENCE.sub(replaced, text)
