"""All tools together: what is true of every one of them, whoever adds one."""

from __future__ import annotations

from pathlib import Path

from kedge.tools import builtin
from kedge.tools.registry import TOOLS, load_language_tools, select_tools


def test_every_module_of_builtin_is_registered() -> None:
    directory = Path(builtin.__file__).parent
    modules = {path.stem for path in directory.glob("*.py")} - {"__init__", "lsp"}
    tools, language_tools = {tool.name for tool in TOOLS}, {tool.name for tool in load_language_tools()}
    assert modules == tools
    assert {path.stem for path in directory.glob("*.md")} == tools | language_tools


def test_a_sub_agent_has_the_tools_that_change_nothing_and_starts_neither_agents_nor_jobs() -> None:
    offered = {tool.name for tool in select_tools("agent", "ask")}
    assert offered == {"view", "ls", "glob", "grep", "fetch"}
    assert {tool.name for tool in select_tools("agent", "ask", can_search=True)} == {*offered, "web_search"}


def test_only_a_run_that_a_person_answers_can_ask_questions() -> None:
    for permissions in ("allow", "deny"):
        assert {tool.name for tool in TOOLS} - {
            tool.name for tool in select_tools("prompt", permissions, can_search=True)
        } == {"question"}
