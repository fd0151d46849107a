"""`todos`: the session's task list. It is stored in the metadata of the last result, so it survives a restart."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from kedge.protocol.tools import BUILT_IN_TOOLS
from kedge.tools.errors import ToolError
from kedge.tools.port import Output, Tool, ToolContext

MAX_TODOS = 100

_MARKS = {"pending": "[ ]", "in_progress": "[>]", "completed": "[x]"}


class Todo(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    content: Annotated[str, msgspec.Meta(min_length=1, max_length=500, description="what to do, in a few words")]
    status: Literal["pending", "in_progress", "completed"]


class TodosParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    todos: Annotated[list[Todo], msgspec.Meta(max_length=MAX_TODOS, description="the whole list")]


async def run(ctx: ToolContext, params: TodosParams) -> Output:
    todos = params.todos
    if sum(todo.status == "in_progress" for todo in todos) > 1:
        raise ToolError("More than one task is in_progress.", "Work on one at a time; set the others to pending.")
    done = sum(todo.status == "completed" for todo in todos)
    lines = [f"{_MARKS[todo.status]} {todo.content}" for todo in todos]
    head = f"{done} of {len(todos)} done." if todos else "The list is empty now."
    metadata = {"todos": [{"content": todo.content, "status": todo.status} for todo in todos]}
    return Output(content="\n".join([head, *lines]), metadata=metadata)


TOOL = Tool(facts=BUILT_IN_TOOLS["todos"], params=TodosParams, run=run)
