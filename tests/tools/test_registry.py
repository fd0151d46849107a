"""All tools together: what is true of every one of them, whoever adds one."""

from __future__ import annotations

from kedge.config.rules import KINDS
from kedge.config.rules import TOOLS as WITH_RULES
from kedge.tools.registry import TOOLS, tools_for

NAMES = [tool.name for tool in TOOLS]


def test_a_rule_can_be_written_for_every_tool_and_for_no_other() -> None:
    assert len(set(NAMES)) == len(NAMES)
    assert {*KINDS, *WITH_RULES} - {"read"} == set(NAMES)  # `read` is all that reads


def test_a_run_that_plans_has_no_tool_that_only_changes_something() -> None:
    offered = {tool.name for tool in tools_for("prompt", "ask", "plan")}
    assert {tool.name for tool in TOOLS if tool.is_read_only} <= offered
    assert not {"edit", "multiedit", "write", "download", "job_kill"} & offered
