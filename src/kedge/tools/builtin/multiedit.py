"""`multiedit`: several edits of one file, all or none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec

from kedge.protocol.tools import BUILT_IN_TOOLS
from kedge.tools.port import Access, Output, Tool, ToolContext, ToolScope
from kedge.tools.text.edit_plan import Change, list_edit_access, run_edit

MAX_EDITS = 200


class OneEdit(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    old_string: Annotated[str, msgspec.Meta(description="the text to replace, exactly as it is in the file by then")]
    new_string: Annotated[str, msgspec.Meta(description="the new text")]
    replace_all: Annotated[bool, msgspec.Meta(description="replace every occurrence")] = False


class MultieditParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    path: Annotated[str, msgspec.Meta(description="the file")]
    edits: Annotated[list[OneEdit], msgspec.Meta(min_length=1, max_length=MAX_EDITS, description="in their order")]


def _changes(params: MultieditParams) -> list[Change]:
    return [Change(edit.old_string, edit.new_string, edit.replace_all) for edit in params.edits]


async def list_access(scope: ToolScope, params: MultieditParams) -> Sequence[Access]:
    return await list_edit_access(scope, params.path, _changes(params))


async def run(ctx: ToolContext, params: MultieditParams) -> Output:
    return await run_edit(ctx, params.path, _changes(params))


TOOL = Tool(facts=BUILT_IN_TOOLS["multiedit"], params=MultieditParams, run=run, list_access=list_access)
