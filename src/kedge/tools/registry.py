"""All tools, in the order in which a model sees them, which never changes: a list that stays the same is cached."""

from __future__ import annotations

from collections.abc import Sequence

from kedge.protocol.runs import Mode, Permissions, RunKind
from kedge.tools.builtin.agent import AGENT
from kedge.tools.builtin.bash import BASH
from kedge.tools.builtin.download import DOWNLOAD
from kedge.tools.builtin.edit import EDIT
from kedge.tools.builtin.fetch import FETCH
from kedge.tools.builtin.glob import GLOB
from kedge.tools.builtin.grep import GREP
from kedge.tools.builtin.job_kill import JOB_KILL
from kedge.tools.builtin.job_output import JOB_OUTPUT
from kedge.tools.builtin.ls import LS
from kedge.tools.builtin.multiedit import MULTIEDIT
from kedge.tools.builtin.question import QUESTION
from kedge.tools.builtin.todos import TODOS
from kedge.tools.builtin.view import VIEW
from kedge.tools.builtin.write import WRITE
from kedge.tools.port import Tool

TOOLS: tuple[Tool, ...] = (
    *(VIEW, LS, GLOB, GREP),
    *(EDIT, MULTIEDIT, WRITE),
    *(BASH, JOB_OUTPUT, JOB_KILL),
    *(FETCH, DOWNLOAD),
    *(TODOS, QUESTION, AGENT),
)

# What a sub-agent has no use for, although it changes nothing: it reports to an agent, and works alone.
_NOT_FOR_SUB_AGENTS = frozenset({"agent", "question", "todos"})
# What is only there to change something. Of the rest the permissions decide, want by want.
_CHANGERS = frozenset({"edit", "multiedit", "write", "download", "job_kill"})


def tools_for(
    kind: RunKind,
    permissions: Permissions,
    mode: Mode,
    tools: Sequence[Tool] = TOOLS,
    *,
    can_sandbox: bool = True,
) -> tuple[Tool, ...]:
    """The tools of a run. A question is offered only where a person may answer it, and a command to a run that only
    plans only where it can be held, so that it changes nothing."""
    hidden: set[str] = set()
    if kind == "agent":
        hidden |= _NOT_FOR_SUB_AGENTS | {tool.name for tool in tools if not tool.is_read_only}
    if permissions != "ask":
        hidden.add("question")
    if mode == "plan":
        hidden |= _CHANGERS if can_sandbox else _CHANGERS | {"bash"}
    return tuple(tool for tool in tools if tool.name not in hidden)
