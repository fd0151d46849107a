"""Facts about the built-in tools, one row each: the registry, the permission rules and the agent read them here.

Adding a tool means a row here, `kedge/tools/builtin/NAME.py` and `NAME.md` beside it. The rows are in the order in
which a model sees the tools. Providers cache the beginning of a request, so the order of existing rows never changes.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

# "nothing": calls run in parallel, and sub-agents have the tool. "files": the tool records each file it changes
# (`ToolContext.record_change`). "anything": the workspace is scanned for changes afterwards.
Changes = Literal["nothing", "conversation", "files", "processes", "anything"]
RulePattern = Literal["path", "command", "domain", "text"]


class ToolFacts(NamedTuple):
    name: str
    changes: Changes
    rule_pattern: RulePattern | None = None  # the meaning of `pattern` in the permission rule `NAME(pattern)`
    for_sub_agents: bool = True  # offered to sub-agents if it also changes nothing

    @property
    def is_read_only(self) -> bool:
        return self.changes == "nothing"


_ROWS = (
    ToolFacts("view", "nothing", "path"),
    ToolFacts("ls", "nothing", "path"),
    ToolFacts("glob", "nothing", "path"),
    ToolFacts("grep", "nothing", "path"),
    ToolFacts("edit", "files", "path"),
    ToolFacts("multiedit", "files", "path"),
    ToolFacts("write", "files", "path"),
    ToolFacts("bash", "anything", "command"),
    ToolFacts("job_output", "nothing", for_sub_agents=False),  # they start no jobs
    ToolFacts("job_kill", "processes"),
    ToolFacts("fetch", "nothing", "domain"),
    ToolFacts("download", "files", "path"),
    ToolFacts("todos", "conversation"),
    ToolFacts("question", "conversation"),
    ToolFacts("agent", "nothing", for_sub_agents=False),
    ToolFacts("web_search", "nothing", "text"),
    ToolFacts("skill", "conversation", for_sub_agents=False),  # offered only where there are skills
    ToolFacts("lsp_diagnostics", "nothing", "path"),
    ToolFacts("lsp_definition", "nothing", "path"),
    ToolFacts("lsp_references", "nothing", "path"),
    ToolFacts("lsp_hover", "nothing", "path"),
    ToolFacts("lsp_symbols", "nothing", "path"),
    ToolFacts("lsp_rename", "files", "path"),
    ToolFacts("lsp_code_action", "files", "path"),
)

BUILT_IN_TOOLS = {facts.name: facts for facts in _ROWS}
# A sub-agent delegates to no other one, asks no questions, and has no skills.
NOT_FOR_AGENTS = frozenset({"agent", "question", "skill"})
