"""`todos`, `question` and `agent`: what the model, the person and a sub-agent tell each other."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from kedge.protocol.requests import Answer
from kedge.tools.builtin.agent import TOOL as AGENT
from kedge.tools.builtin.question import TOOL as QUESTION
from kedge.tools.builtin.todos import TOOL as TODOS
from kedge.tools.errors import ToolError
from kedge.tools.port import Output, Tool
from tests.tools.harness import ToolHarness


async def call(tool: Tool, harness: ToolHarness, **params: Any) -> Output:
    return await tool.run(harness, msgspec.convert(params, tool.params))


def asked(**params: Any) -> list[dict[str, Any]]:
    assert QUESTION.list_questions is not None
    return QUESTION.list_questions(msgspec.convert(params, QUESTION.params))


async def test_the_list_is_shown_and_kept_with_the_result(harness: ToolHarness) -> None:
    todos = [
        {"content": "read", "status": "completed"},
        {"content": "write", "status": "in_progress"},
        {"content": "test", "status": "pending"},
    ]
    output = await call(TODOS, harness, todos=todos)
    assert output.content == "1 of 3 done.\n[x] read\n[>] write\n[ ] test"
    assert output.metadata == {"todos": todos}
    assert (await call(TODOS, harness, todos=[])).metadata == {"todos": []}


async def test_two_tasks_at_once_are_refused(harness: ToolHarness) -> None:
    todos = [{"content": name, "status": "in_progress"} for name in "ab"]
    with pytest.raises(ToolError, match="one at a time"):
        await call(TODOS, harness, todos=todos)


async def test_answers_of_every_kind_are_told_to_the_model(harness: ToolHarness) -> None:
    questions = [
        {"question": "Sure?", "kind": "yes_no"},
        {"question": "Which?", "kind": "one", "options": ["a", "b"]},
        {"question": "What else?", "kind": "many", "options": ["c", "d"]},
        {"question": "Why?"},
    ]
    assert [each["question"] for each in asked(questions=questions)] == ["Sure?", "Which?", "What else?", "Why?"]
    harness.answer = Answer(action="answer", by="tui", answers=[True, "b", ["c", "d"]])
    output = await call(QUESTION, harness, questions=questions)
    assert output.content == (
        "Q: Sure?\nA: yes\n\nQ: Which?\nA: b\n\nQ: What else?\nA: c, d\n\nQ: Why?\nA: (no answer)"
    )


async def test_no_answer_is_an_answer(harness: ToolHarness) -> None:
    harness.answer = Answer(action="cancel", by="tui")
    assert "Decide yourself" in (await call(QUESTION, harness, questions=[{"question": "Why?"}])).content


def test_a_choice_without_options_is_not_put_to_anybody() -> None:
    with pytest.raises(ToolError, match="at least two options"):
        asked(questions=[{"question": "Which?", "kind": "one", "options": ["only"]}])


async def test_a_report_is_the_result(harness: ToolHarness) -> None:
    harness.report = "it is in a.py"
    output = await call(AGENT, harness, prompt="where   is it?")
    assert output.content == "where is it?: it is in a.py"
