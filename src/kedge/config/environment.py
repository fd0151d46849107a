"""`${NAME}` and `${NAME:-default}` in texts of the configuration. `$$` is a dollar sign, and so is a lone `$`."""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Callable, Mapping
from typing import Any, cast

from kedge.config.errors import Problem
from kedge.config.keys import Key
from kedge.config.schema_tree import Leaf, leaves

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


# Variables as a layer: `KEDGE_AGENT__MAX_STEPS` is `agent.max_steps`. Their names are made from the schema.


PREFIX = "KEDGE_"
BETWEEN = "__"  # where a key has a dot
_SWITCHES = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False}


@functools.cache
def variables() -> dict[str, tuple[tuple[str, ...], Leaf]]:
    """The variable of every key that has one value and a fixed name."""
    return {
        PREFIX + BETWEEN.join(path).upper(): (path, leaf)
        for path, leaf in leaves()
        if "*" not in path and leaf.kind != "texts"
    }


def variable_of(path: tuple[str, ...]) -> str | None:
    return next((name for name, (known, _) in variables().items() if known == path), None)


def read(env: Mapping[str, str]) -> tuple[dict[str, tuple[tuple[str, ...], Any]], list[Problem]]:
    """What the variables set, by their names. One that is empty is not set; one with `__` can only be meant for us."""
    found: dict[str, tuple[tuple[str, ...], Any]] = {}
    problems: list[Problem] = []
    for name, text in env.items():
        if not name.startswith(PREFIX) or not text.strip():
            continue
        if name in variables():
            path, leaf = variables()[name]
            value = _value(text.strip(), leaf)
            if (problem := leaf.problem(value)) is not None:
                problems.append(Problem(name, 0, "", problem))
            else:
                found[name] = (path, value)
        elif BETWEEN in name:
            near = difflib.get_close_matches(name, variables(), 1)
            hint = f"; did you mean {near[0]}?" if near else ""
            problems.append(Problem(name, 0, "", f"there is no such variable{hint}"))
    return found, problems


def _value(text: str, leaf: Leaf) -> Any:
    """As the key has it, or the text itself, which then is the problem."""
    try:
        match leaf.kind:
            case "whole":
                return int(text)
            case "number":
                return float(text)
            case "switch":
                return _SWITCHES.get(text.lower(), text)
            case _:
                return text
    except ValueError:
        return text
