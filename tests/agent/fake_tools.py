"""Tools for tests: they log what they do, and wait at gates that a test opens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec

from kedge.engine.scripted import Gates
from kedge.protocol.messages import Image
from kedge.protocol.tools import Changes, ToolFacts
from kedge.tools.errors import ToolError
from kedge.tools.port import Access, ListAccess, Output, Run, Tool, ToolContext, ToolScope


class NamedTool(Tool, frozen=True, kw_only=True):
    """A tool without a Markdown file."""

    @property
    def description(self) -> str:
        return f"{self.name}, for tests"


class Params(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The parameters of each tool."""

    text: Annotated[str, msgspec.Meta(description="comes back")]
    count: int = 1
    gate: str = ""


def make_tool(name: str, run: Run, changes: Changes = "anything", *, list_access: ListAccess | None = None) -> Tool:
    return NamedTool(facts=ToolFacts(name, changes), params=Params, run=run, list_access=list_access)


class FakeTools:
    """`log` has what happened, in order: "peek a begins", "peek a ends"."""

    def __init__(self) -> None:
        self.gates = Gates()
        self.log: list[str] = []
        self.contexts: list[ToolContext] = []

    @property
    def tools(self) -> Sequence[Tool]:
        return (
            make_tool("peek", self._run_logged("peek"), "nothing"),
            make_tool("poke", self._run_logged("poke")),
            make_tool("risk", self._run_logged("risk"), list_access=list_access),
            make_tool("look", self._run_logged("look"), "nothing", list_access=list_access),
            make_tool("picture", picture, "nothing"),
            make_tool("boom", boom),
            make_tool("refuse", refuse),
            make_tool("flood", flood),
            make_tool("helper", helper, "nothing"),
        )

    def _run_logged(self, name: str):
        async def run(ctx: ToolContext, params: Params) -> Output:
            self.contexts.append(ctx)
            self.log.append(f"{name} {params.text} begins")
            ctx.write(f"{params.text} at work\n")
            if params.gate:
                await self.gates.wait(params.gate)
            self.log.append(f"{name} {params.text} ends")
            files = {params.text: f"digest of {params.text}"}
            return Output(content=params.text * params.count, metadata={"files": files})

        return run


async def list_access(_scope: ToolScope, params: Params) -> Sequence[Access]:
    return (Access(kind="execute", subject=params.text, description=f"risk {params.text}"),)


async def picture(_ctx: ToolContext, params: Params) -> Output:
    return Output(content=params.text, images=[Image("image/png", b"png")] * params.count)


async def boom(_ctx: ToolContext, params: Params) -> Output:
    raise RuntimeError(params.text)


async def refuse(_ctx: ToolContext, params: Params) -> Output:
    raise ToolError(f"{params.text} is not there; look elsewhere")


async def flood(ctx: ToolContext, params: Params) -> Output:
    for _ in range(params.count):
        ctx.write(params.text * 100_000)
    return Output(content=f"\ud800{params.text * 100_000 * params.count}", metadata={"lone": "\ud800"})


async def helper(ctx: ToolContext, params: Params) -> Output:
    return Output(content=await ctx.delegate(params.text, "a helper"))
