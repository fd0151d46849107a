"""Tools that a test holds in its hands: what they do is told, and where they wait a test opens the gate."""

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
    """What each of them takes."""

    text: Annotated[str, msgspec.Meta(description="comes back")]
    count: int = 1
    gate: str = ""


def make_tool(name: str, run: Run, changes: Changes = "anything", *, list_access: ListAccess | None = None) -> Tool:
    return NamedTool(facts=ToolFacts(name, changes), params=Params, run=run, list_access=list_access)


class Hands:
    """`told` is what happened, in order: "peek a begins", "peek a ends"."""

    def __init__(self) -> None:
        self.gates = Gates()
        self.told: list[str] = []
        self.places: list[ToolContext] = []

    @property
    def tools(self) -> Sequence[Tool]:
        return (
            make_tool("peek", self._at_work("peek"), "nothing"),
            make_tool("poke", self._at_work("poke")),
            make_tool("risk", self._at_work("risk"), list_access=list_access),
            make_tool("look", self._at_work("look"), "nothing", list_access=list_access),
            make_tool("picture", picture, "nothing"),
            make_tool("boom", boom),
            make_tool("refuse", refuse),
            make_tool("flood", flood),
            make_tool("helper", helper, "nothing"),
        )

    def _at_work(self, name: str):
        async def run(ctx: ToolContext, params: Params) -> Output:
            self.places.append(ctx)
            self.told.append(f"{name} {params.text} begins")
            ctx.write(f"{params.text} at work\n")
            if params.gate:
                await self.gates.wait(params.gate)
            self.told.append(f"{name} {params.text} ends")
            files = {params.text: f"digest of {params.text}"}
            return Output(content=params.text * params.count, metadata={"files": files})

        return run


async def list_access(_place: ToolScope, params: Params) -> Sequence[Access]:
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
