"""Wrong input of a tool: the error teaches what to send, also inside of lists."""

from __future__ import annotations

import pytest

from kedge.agent.params import decoded
from kedge.tools.errors import ToolError
from kedge.tools.multiedit import MULTIEDIT
from kedge.tools.port import Tool
from kedge.tools.question import QUESTION
from kedge.tools.todos import TODOS

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
            '{"path": "a", "edits": [{"oldstring": "a", "new_string": "b"}]}',
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
        decoded(tool, given)
    for each in words:
        assert each in str(caught.value)
