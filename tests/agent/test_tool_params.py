"""The input of a tool as models write it: what is clear is taken, and an error teaches what to send instead."""

from __future__ import annotations

import threading
from typing import Any

import msgspec
import pytest

from kedge.agent.tool_params import build_input_schema, decode_params, describe_tool, explain_unknown_tool
from kedge.protocol.tool_input import correct_params, correct_tool_name
from kedge.tools.builtin.bash import TOOL as BASH
from kedge.tools.builtin.edit import TOOL as EDIT
from kedge.tools.builtin.grep import TOOL as GREP
from kedge.tools.builtin.ls import TOOL as LS
from kedge.tools.builtin.multiedit import TOOL as MULTIEDIT
from kedge.tools.builtin.question import TOOL as QUESTION
from kedge.tools.builtin.todos import TOOL as TODOS
from kedge.tools.builtin.view import TOOL as VIEW
from kedge.tools.builtin.write import TOOL as WRITE
from kedge.tools.errors import ToolError
from kedge.tools.port import Tool
from kedge.tools.registry import TOOLS

TODO = '{"todos": [{"content": "a", "status": "pending"}]}'
EDITS = (
    "Each of `edits` is an object that takes `old_string` (string, required), `new_string` (string, required),"
    " `replace_all` (boolean, optional)."
)
QUESTIONS = (
    "Each of `questions` is an object that takes `question` (string, required),"
    " `kind` (many | one | text | yes_no, optional), `options` (array of string, optional)."
)


@pytest.mark.parametrize(
    ("tool", "given", "words"),
    [
        (TODOS, '{"todos": [{"content": "a", "status": "done"}]}', ["`$.todos[0].status`", "completed | in_progress"]),
        (TODOS, '{"todos": ["a"]}', ["Each of `todos` is an object that takes `content` (string, required)"]),
        (
            MULTIEDIT,
            '{"path": "a", "edits": [{"odl_string": "a", "new_string": "b"}]}',
            [EDITS, "did you mean `old_string`"],
        ),
        (MULTIEDIT, '{"path": "a", "edits": []}', ["at `$.edits`", EDITS]),
        (MULTIEDIT, '{"path": "a", "changes": []}', ["There is no `changes`.", EDITS]),
        (QUESTION, '{"questions": ["which?"]}', ["Expected `object`, got `str`", QUESTIONS]),
        (
            QUESTION,
            '{"questions": [{"question": "a", "options": [{"label": "x"}]}]}',
            ["`$.questions[0].options[0]`", QUESTIONS],
        ),
        (QUESTION, '{"questions": [{', ["is not valid JSON", QUESTIONS]),
    ],
)
def test_what_was_expected_inside_of_a_list_is_named(tool: Tool, given: str, words: list[str]) -> None:
    with pytest.raises(ToolError) as caught:
        decode_params(tool, given)
    for each in words:
        assert each in str(caught.value)


@pytest.mark.parametrize(
    ("tool", "given", "same"),
    [
        (VIEW, '{"path": "a", "offset": "3", "limit": null}', '{"path": "a", "offset": 3}'),
        (VIEW, '"{\\"path\\": \\"a\\"}"', '{"path": "a"}'),
        (LS, "null", "{}"),
        (TODOS, '{"todos": "[{\\"content\\": \\"a\\", \\"status\\": \\"pending\\"}]"}', TODO),
        (TODOS, '{"todos": ["{\\"content\\": \\"a\\", \\"status\\": \\"pending\\"}"]}', TODO),
        (QUESTION, '{"questions": [{"question": "a", "options": null}]}', '{"questions": [{"question": "a"}]}'),
        (WRITE, '{"path": "a", "content": "[1]"}', '{"path": "a", "content": "[1]"}'),
        (BASH, '{"command": "{}", "timeout": null}', '{"command": "{}"}'),
        (VIEW, '{"file_path": "a", "offset": 0}', '{"path": "a", "offset": 1}'),
        (VIEW, '{"filename": "a", "offset": "0"}', '{"path": "a"}'),
        (BASH, '{"cmd": "ls", "cwd": null, "runInBackground": "true"}', '{"command": "ls", "run_in_background": true}'),
        (
            EDIT,
            '{"filePath": "a", "old_str": "b", "new_str": ""}',
            '{"path": "a", "old_string": "b", "new_string": ""}',
        ),
        (
            MULTIEDIT,
            '{"file": "a", "edits": "[{\\"old\\": \\"b\\", \\"new\\": \\"c\\"}]"}',
            '{"path": "a", "edits": [{"old_string": "b", "new_string": "c"}]}',
        ),
        (WRITE, '{"path": "a", "content": "x\n\ty"}', '{"path": "a", "content": "x\\n\\ty"}'),
        (WRITE, '{"path": "a", "content": "x,}",\n}', '{"path": "a", "content": "x,}"}'),
        (LS, '```json\n{"path": "a"}\n```', '{"path": "a"}'),
        (GREP, '{"query": "a", "path": "b", "glob": "*.py"}', '{"pattern": "a", "path": "b", "include": "*.py"}'),
    ],
)
def test_what_is_clear_is_taken_for_what_it_means(tool: Tool, given: str, same: str) -> None:
    assert decode_params(tool, given) == msgspec.json.decode(same, type=tool.params)


@pytest.mark.parametrize(
    ("tool", "given"),
    [
        (VIEW, '{"file_path": "a", "filename": "b"}'),  # which?
        (VIEW, '{"path": "a", "file_path": "b"}'),
        (BASH, '{"command": "ls", "timeout_ms": 5}'),
        (EDIT, '{"path": "a", "old_string": "b", "new_string": "c", "expected_replacements": 1}'),
        (WRITE, '{"path": "a", "content": "\\ud83d"}'),
        (WRITE, '{"path": "a", "content": NaN}'),
        (WRITE, '{"path": "a", "content": "b'),
    ],
)
def test_what_is_not_clear_is_asked_again(tool: Tool, given: str) -> None:
    with pytest.raises(ToolError, match="It takes"):
        decode_params(tool, given)


@pytest.mark.timeout(10)
@pytest.mark.parametrize(
    "text", ['"\\"' + '\\"' * 300_000, "," * 300_000 + " " * 300_000, "[" * 300_000, "```\n" * 300_000]
)
def test_text_that_is_made_to_be_slow_is_refused_at_once(text: str) -> None:
    with pytest.raises(ToolError):
        decode_params(WRITE, f'{{"path": "a", "content": {text}')


def test_no_parameter_is_another_name_for_another_parameter_of_its_tool() -> None:
    for tool in TOOLS:
        properties = describe_tool(tool).input_schema.get("properties", {})
        for name in properties:
            assert correct_params(tool.name, {name: 1}).keys() == {name}, tool.name


@pytest.mark.parametrize(
    ("name", "tool"),
    [
        ("Bash", "bash"),
        ("BASH", "bash"),
        ("Read", "view"),
        ("read_file", "view"),
        ("ReadFile", "view"),
        ("run-command", "bash"),
        ("str_replace", "edit"),
        ("MultiEdit", "multiedit"),
        ("BashOutput", "job_output"),
        ("view", "view"),
        ("apply_patch", "apply_patch"),
        ("", ""),
    ],
)
def test_a_name_stands_for_one_tool(name: str, tool: str) -> None:
    assert correct_tool_name(name, [each.name for each in TOOLS]) == tool


def test_a_name_never_stands_for_a_tool_that_is_not_offered() -> None:
    assert correct_tool_name("shell", ["view"]) == "shell"
    assert correct_tool_name("Read", ["view", "read"]) == "read"
    assert correct_tool_name("READ", ["Read", "read"]) == "READ"


def test_a_tool_of_other_agents_is_compared_to_ours() -> None:
    names = [each.name for each in TOOLS]
    assert "Did you mean `edit`?" in explain_unknown_tool("apply_patch", names)
    assert "Did you mean" not in explain_unknown_tool("apply_patch", ["view"])


@pytest.mark.parametrize("given", ['{"path": null}', "{}", '{"path": ["a"]}', '{"path": {}}', "[]", "1"])
def test_what_is_missing_is_not_made_up(given: str) -> None:
    with pytest.raises(ToolError, match=r"It takes `path` \(string, required\)"):
        decode_params(VIEW, given)


@pytest.mark.parametrize("todos", ["a", "[1", "{}", "1", "null"])
def test_a_text_that_is_no_list_stays_a_mistake(todos: str) -> None:
    with pytest.raises(ToolError, match="Expected `array`"):
        decode_params(TODOS, msgspec.json.encode({"todos": todos}).decode())


@pytest.mark.parametrize("depth", [500, 5_000])
def test_what_is_nested_too_deeply_is_a_mistake_of_the_call(depth: int) -> None:
    with pytest.raises(ToolError, match="nested too deeply"):
        decode_params(VIEW, '{"path": ' + "[" * depth + "]" * depth + "}")


def test_one_thread_at_a_time_learns_what_a_tool_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """msgspec crashes the process when one thread uses a struct that another is just learning."""
    both_inside = threading.Barrier(2)
    met: list[bool] = []
    schema = msgspec.json.schema

    def slow_schema(params: type[msgspec.Struct]) -> dict[str, Any]:
        try:
            both_inside.wait(0.5)
            met.append(True)
        except threading.BrokenBarrierError:
            met.append(False)
        return schema(params)

    monkeypatch.setattr(msgspec.json, "schema", slow_schema)
    threads = [threading.Thread(target=build_input_schema, args=(VIEW.params,)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert met == [False, False]
