"""`agent`: runs a sub-agent in its own session. Its report is the result; its cost counts for the run.

Without a name it is the general one, which only reads. The others are defined by files of the user or the project.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from kedge.protocol.text_safety import provisional_title
from kedge.protocol.tools import BUILT_IN_TOOLS
from kedge.tools.port import Output, Tool, ToolContext


class AgentParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    prompt: Annotated[
        str, msgspec.Meta(min_length=1, max_length=100_000, description="the whole task, and what to report")
    ]
    title: Annotated[str, msgspec.Meta(max_length=100, description="the task in a few words")] = ""
    agent: Annotated[str, msgspec.Meta(description="which sub-agent (default: the general one, which only reads)")] = ""


async def run(ctx: ToolContext, params: AgentParams) -> Output:
    title = params.title or provisional_title(params.prompt)
    return Output(content=await ctx.delegate(params.prompt, title, params.agent.strip()))


TOOL = Tool(facts=BUILT_IN_TOOLS["agent"], params=AgentParams, run=run)
