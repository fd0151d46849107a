"""The format of hooks: names, decisions, and output that cannot be used."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kedge.agent.hooks.wire import (
    MAX_CONTEXT_CHARS,
    HookEvent,
    HookRun,
    find_match,
    list_names,
    read_output,
    translate_input,
)
from kedge.config.schema import HookConfig
from kedge.protocol.tool_input import correct_params
from kedge.protocol.tools import BUILT_IN_TOOLS

HOOK = HookConfig(command="guard")


def read(event: HookEvent, output: Any, code: int = 0, stderr: str = "", hook: HookConfig = HOOK):
    text = output if isinstance(output, str) else json.dumps(output)
    return read_output(event, hook, HookRun(code, text, stderr))


@pytest.mark.parametrize(
    ("matcher", "tool", "name"),
    [
        ("", "bash", "Bash"),
        ("*", "view", "Read"),
        ("Edit|MultiEdit|Write", "multiedit", "MultiEdit"),
        ("Edit|Write", "multiedit", "Edit"),
        ("Edit, Write", "write", "Write"),
        ("Bash", "job_output", None),
        ("bash", "bash", "bash"),
        ("^(edit|write)$", "edit", "edit"),
        ("Web.*", "fetch", "WebFetch"),
        ("mcp__.*__delete", "mcp_files_delete", "mcp__files__delete"),
        ("mcp_files_delete", "mcp_files_delete", "mcp_files_delete"),
        ("Notebook.*", "edit", None),
    ],
)
def test_matchers_know_the_names_of_other_agents_and_our_own(matcher: str, tool: str, name: str | None) -> None:
    assert find_match(matcher, list_names(tool, ["files"])) == name


@pytest.mark.parametrize("tool", BUILT_IN_TOOLS)
def test_an_input_in_the_words_of_other_agents_means_the_same_call(tool: str) -> None:
    given = {"path": "/a", "command": "ls", "job_id": "1", "title": "t", "include": "*.py", "url": "u"}
    for name in list_names(tool):
        translated = translate_input(tool, name, given)
        known = {key: value for key, value in translated.items() if key not in given}
        assert correct_params(tool, known).items() <= given.items()


def test_decisions_about_calls_are_read_in_the_new_and_the_old_form() -> None:
    def own(**fields: Any) -> dict[str, Any]:
        return {"hookSpecificOutput": {"hookEventName": "PreToolUse", **fields}}

    denied = read("PreToolUse", own(permissionDecision="deny", permissionDecisionReason="no"))
    assert (denied.decision, denied.reason) == ("deny", "no")
    changed = read("PreToolUse", own(permissionDecision="allow", updatedInput={"command": "ls"}))
    assert (changed.decision, changed.input) == ("allow", {"command": "ls"})
    denied = read("PreToolUse", {**own(permissionDecision="deny"), "systemMessage": "never"})
    assert (denied.decision, denied.reason) == ("deny", "never"), "the model learns what people are told"
    assert read("PreToolUse", own(permissionDecision="defer")).decision == ""
    assert read("PreToolUse", {"decision": "block", "reason": "no"}).decision == "deny"
    assert read("PreToolUse", {"decision": "approve"}).decision == "allow"
    assert read("PostToolUse", {"decision": "approve"}).decision == ""
    assert read("PreToolUse", {"continue": False, "stopReason": "over"}).stops == "over"
    assert read("PreToolUse", {"systemMessage": "m", "suppressOutput": True, "new_field": 1}).message == "m"
    assert read("PreToolUse", own(additionalContext="c")).context == "c"


def test_exit_code_2_blocks_another_is_a_failure_and_plain_text_is_context_for_prompts_only() -> None:
    assert read("Stop", "", 2, "go on").reason == "go on"
    assert read("Stop", '{"decision": "block"}', 1, "broken").failure == "exit code 1: broken"
    assert read("UserPromptSubmit", "hello").context == "hello"
    assert read("PreToolUse", "hello").context == ""


def test_a_hook_that_says_it_runs_in_the_background_is_waited_for_and_its_answer_counts() -> None:
    first = '{"async": true, "asyncTimeout": 180000}'
    assert read("SessionStart", first).failure == ""
    assert read("PostToolUse", f'{first}\n{{"decision": "block", "reason": "no"}}').reason == "no"


@pytest.mark.parametrize("output", ['{"decision": 7}', '{"hookSpecificOutput": []}', "{", '{"a": ' * 3000])
def test_output_that_cannot_be_used_is_a_failure(output: str) -> None:
    assert read("PreToolUse", output).failure
    assert read("PreToolUse", output, hook=HookConfig(command="x", on_failure="block")).decision == "deny"


def test_what_a_hook_tells_the_model_is_bounded_and_valid() -> None:
    context = read("UserPromptSubmit", "x" * (MAX_CONTEXT_CHARS * 2)).context
    assert len(context) == MAX_CONTEXT_CHARS
    assert read("PostToolUse", '{"reason": "\\ud800", "decision": "block"}').reason.isprintable()
