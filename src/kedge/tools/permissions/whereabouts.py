"""Where a script is while it runs: `cd` decides what the paths after it mean."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import dropwhile
from typing import TYPE_CHECKING

from kedge.tools.permissions.ground import Directories, changed_directory
from kedge.tools.permissions.options import names
from kedge.tools.permissions.words import UNKNOWN, Word

if TYPE_CHECKING:
    from tree_sitter import Node

_LOOPS = names("for_statement while_statement c_style_for_statement")
_MOVES = names("cd pushd popd eval")
_LEADS_ANYWHERE = names("pushd popd eval source .")
_RUNS_HERE = names("command builtin time")  # what they run is run in this shell


def followed(words: Sequence[Word], directories: Directories) -> Directories:
    """The directories that the shell may be in after a command."""
    name = words[0].text
    if name in _RUNS_HERE:
        inner = tuple(dropwhile(lambda word: (word.text or "").startswith("-"), words[1:]))
        return followed(inner, directories) if inner else directories
    if name in _LEADS_ANYWHERE:
        return None
    if name != "cd":
        return directories
    targets = [word for word in words[1:] if word.text not in ("--", "-P", "-L")]
    target = targets[0] if len(targets) == 1 and not targets[0].is_glob else UNKNOWN
    if target.text in (None, "", "-") or any(word.text == "-P" for word in words):
        return None
    return changed_directory(directories, target.text or "")


def wanders(root: Node, words_of: Callable[[Node], list[Word]]) -> bool:
    """Whether a loop or a function may change the directory for what stands before its `cd`."""
    has_function = False
    moves: list[Node] = []
    stack = [root]
    while stack:
        node = stack.pop()
        stack += node.children
        has_function |= node.type == "function_definition"
        if node.type == "command" and any(word.text in _MOVES for child in node.children for word in words_of(child)):
            moves.append(node)
    return any(has_function or _is_in_loop(move) for move in moves)


def _is_in_loop(node: Node) -> bool:
    parent = node.parent
    while parent is not None:
        if parent.type in _LOOPS:
            return True
        parent = parent.parent
    return False
