"""Environment variables in the configuration.

`KEDGE_AGENT__MAX_STEPS` sets `agent.max_steps` (variable names are derived from the schema). `${NAME}` and
`${NAME:-default}` inside string values are replaced; `$$` and a lone `$` mean a dollar sign.
"""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Callable, Mapping
from typing import Any, cast

from kedge.config.errors import Problem
from kedge.config.keys import Key
from kedge.config.schema_tree import Leaf, iter_leaves

PREFIX = "KEDGE_"
SEPARATOR = "__"  # for the dots of a key
_SWITCHES = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False}
_REFERENCE = re.compile(r"\$\$|\$\{(?:([A-Za-z_][A-Za-z0-9_]*)(?::-([^{}]*))?\})?")


class UnresolvedReference(Exception):
    """One line: which variable is missing, and what to do."""


@functools.cache
def list_variables() -> dict[str, tuple[tuple[str, ...], Leaf]]:
    """Map each variable to its key. Lists and tables with user-chosen names have no variable."""
    return {
        PREFIX + SEPARATOR.join(path).upper(): (path, leaf)
        for path, leaf in iter_leaves()
        if "*" not in path and leaf.kind not in ("texts", "tables")
    }


def variable_for(path: tuple[str, ...]) -> str | None:
    return next((name for name, (known, _) in list_variables().items() if known == path), None)


def read_variables(env: Mapping[str, str]) -> tuple[dict[str, tuple[tuple[str, ...], Any]], list[Problem]]:
    """Return the values set by variables, by variable name, and what is wrong with the others.

    An empty variable counts as unset. Unknown names are reported only if they contain `__`: other `KEDGE_…` variables
    may belong to something else.
    """
    values: dict[str, tuple[tuple[str, ...], Any]] = {}
    problems: list[Problem] = []
    for name, text in env.items():
        if not name.startswith(PREFIX) or not text.strip():
            continue
        if name in list_variables():
            path, leaf = list_variables()[name]
            value = _convert(text.strip(), leaf)
            if (problem := leaf.find_problem(value)) is not None:
                problems.append(Problem(name, 0, "", problem))
            else:
                values[name] = (path, value)
        elif SEPARATOR in name:
            near = difflib.get_close_matches(name, list_variables(), 1)
            hint = f"; did you mean {near[0]}?" if near else ""
            problems.append(Problem(name, 0, "", f"unknown variable{hint}"))
    return values, problems


def _convert(text: str, leaf: Leaf) -> Any:
    """Convert to the key's type; return the text itself if that fails, so that validation reports it."""
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


def referenced_names(text: str) -> list[str]:
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


def expand_references(value: Any, env: Mapping[str, str], path: Key, report: Callable[[Key, str], None]) -> Any:
    """Expand every string in the value. What cannot be expanded is reported and left unchanged."""
    match value:
        case str():
            try:
                return expand_text(value, env)
            except UnresolvedReference as error:
                report(path, str(error))
                return value
        case list():
            elements = cast("list[Any]", value)
            return [expand_references(each, env, (*path, index), report) for index, each in enumerate(elements)]
        case dict():
            fields = cast("dict[str, Any]", value)
            return {name: expand_references(each, env, (*path, name), report) for name, each in fields.items()}
        case _:
            return value


def expand_text(text: str, env: Mapping[str, str]) -> str:
    """Raises `UnresolvedReference`."""

    def replace(found: re.Match[str]) -> str:
        name, default = found.groups()
        if found[0] == "$$":
            return "$"
        if name is None:
            raise UnresolvedReference("'${' must be followed by NAME}; write $${ for a literal '${'")
        value = env.get(name)
        if default is not None:
            return value or default
        if value is None:
            raise UnresolvedReference(f"the variable {name} is not set; set it, or write ${{{name}:-DEFAULT}}")
        return value

    return _REFERENCE.sub(replace, text)
