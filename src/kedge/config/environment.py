"""Variables as a layer: `KEDGE_AGENT__MAX_STEPS` is `agent.max_steps`. Their names are made from the schema."""

from __future__ import annotations

import difflib
import functools
from collections.abc import Mapping
from typing import Any

from kedge.config.errors import Problem
from kedge.config.tree import Leaf, leaves

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
