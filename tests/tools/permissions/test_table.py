"""The table of cases: every production of the shell's grammar and every wrapper, harmless and hostile."""

from __future__ import annotations

import pytest
import tree_sitter_bash
from tree_sitter import Language, Node

from kedge.tools.permissions.syntax import Tree, parse
from kedge.tools.permissions.wrappers import _SPECS
from tests.tools.permissions import cases
from tests.tools.permissions.bench import Bench


@pytest.mark.parametrize(("command", "expected"), cases.ALL, ids=lambda text: repr(text)[:60])
def test_the_judge_says_what_the_table_says(bench: Bench, command: str, expected: str) -> None:
    assert bench.says(bench.judge(), command) == expected


@pytest.mark.parametrize("command", [command for command, expected in cases.ALL if expected == "ask"], ids=repr)
def test_what_is_asked_is_refused_in_a_plan_unless_it_only_reads_elsewhere(bench: Bench, command: str) -> None:
    assert bench.says(bench.judge("plan"), command) in ("refuse", "ask")


def test_every_kind_of_the_grammar_has_a_case() -> None:
    language = Language(tree_sitter_bash.language())
    kinds = {
        language.node_kind_for_id(number)
        for number in range(language.node_kind_count)
        if language.node_kind_is_named(number) and language.node_kind_is_visible(number)
    }
    seen: set[str] = set()
    for command, _ in cases.ALL:
        tree = parse(command)
        if isinstance(tree, Tree):
            seen |= kinds_of(tree.root)
    assert kinds - seen == set()


def test_every_wrapper_has_a_case() -> None:
    commands = " ".join(command for command, _ in cases.ALL)
    assert [name for name in _SPECS if name not in commands.split()] == []


def kinds_of(node: Node) -> set[str]:
    found = {node.type}
    for child in node.children:
        found |= kinds_of(child)
    return found
