"""`edit`: replaces text that occurs exactly once in a file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec

from kedge.protocol.tools import BUILT_IN_TOOLS
from kedge.tools.port import Access, Output, Tool, ToolContext, ToolScope
from kedge.tools.text.edit_plan import Change, list_edit_access, run_edit


class EditParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    path: Annotated[str, msgspec.Meta(description="the file")]
    old_string: Annotated[str, msgspec.Meta(description="the text to replace, exactly as it is in the file")]
    new_string: Annotated[str, msgspec.Meta(description="the new text")]
    replace_all: Annotated[bool, msgspec.Meta(description="replace every occurrence")] = False


def _changes(params: EditParams) -> list[Change]:
    return [Change(params.old_string, params.new_string, params.replace_all)]


async def list_access(scope: ToolScope, params: EditParams) -> Sequence[Access]:
    return await list_edit_access(scope, params.path, _changes(params))


async def run(ctx: ToolContext, params: EditParams) -> Output:
    return await run_edit(ctx, params.path, _changes(params))


TOOL = Tool(facts=BUILT_IN_TOOLS["edit"], params=EditParams, run=run, list_access=list_access)
