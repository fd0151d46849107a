"""Exit codes and error codes of Kedge, read from the sources."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from typing import get_args

from kedge.agent.limits import CostCode
from kedge.cli import common, main, run
from kedge.models.errors import Code
from tests.server.process import ROOT

SOURCES = ROOT / "src" / "kedge"
SIGTERM_EXIT = 143  # 128 + the signal's number, made where it is needed

# An error class, and which of its arguments is the code.
_HTTP = {"Conflict": 0, "Invalid": 0, "TooLarge": 0, "TooMany": 0, "Unavailable": 0, "Forbidden": 0, "ErrorBody": 0}
_RUN = {"ConfigError": 0, "TurnFailed": 1, "_make_failure": 1, "Outcome": 2}
_OF_SUPER = (
    "protocol/errors.py",
    "server/errors.py",
    "config/errors.py",
    "protocol/files.py",
)  # classes with a code of their own
_SCRIPTS = "engine/scripted.py"  # stands in for an agent in tests and stories


def exit_codes() -> set[int]:
    named = {
        value for module in (main, common, run) for name, value in vars(module).items() if name.startswith("EXIT_")
    }
    return named | {SIGTERM_EXIT}


def http_codes() -> set[str]:
    """Every `code` that an answer of the server can have."""
    codes: set[str] = set()
    for file, call in _calls():
        name = _name(call)
        if name == "NotFound" or (file == "server/errors.py" and name == "__init__" and _text(call, 0) == "route"):
            codes.add(f"{_text(call, 0)}_not_found")
        elif name in _HTTP:
            codes.add(_text(call, _HTTP[name]))
        elif name == "__init__" and file in _OF_SUPER:
            codes.add(_text(call, 0))
    return codes - {""}


def run_codes() -> set[str]:
    """Every `code` that the end of a failed run can have."""
    called = {_text(call, _RUN[_name(call)]) for file, call in _calls() if _name(call) in _RUN and file != _SCRIPTS}
    return (called | _no_answers() | set(get_args(Code)) | set(get_args(CostCode)) | {"failed"}) - {""}


def _no_answers() -> set[str]:
    """A step that said nothing ends its run with its own reason as the code."""
    keys = [
        key
        for _, tree in _trees()
        for node in ast.walk(tree)
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id == "_NO_ANSWER"
        for key in (node.value.keys if isinstance(node.value, ast.Dict) else [])
    ]
    return {str(key.value) for key in keys if isinstance(key, ast.Constant)}


@cache
def _trees() -> list[tuple[str, ast.Module]]:
    return [(str(path.relative_to(SOURCES)), ast.parse(path.read_text())) for path in sorted(SOURCES.rglob("*.py"))]


def _calls() -> Iterator[tuple[str, ast.Call]]:
    for file, tree in _trees():
        yield from ((file, node) for node in ast.walk(tree) if isinstance(node, ast.Call))


def _name(call: ast.Call) -> str:
    match call.func:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case _:
            return ""


def _text(call: ast.Call, place: int) -> str:
    match call.args[place : place + 1]:
        case [ast.Constant(value=str(text))]:
            return text
        case _:
            return ""
