"""`multiedit`: several edits of one file, all of them or none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec

from kedge.tools.port import Output, Place, Tool, ToolContext, Want
from kedge.tools.text.edit_plan import Change, carry_out, wants_of

MAX_EDITS = 200  # of one call; more than that is a program's work


class OneEdit(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    old_string: Annotated[str, msgspec.Meta(description="the text to replace, exactly as it is in the file by then")]
    new_string: Annotated[str, msgspec.Meta(description="what takes its place")]
    replace_all: Annotated[bool, msgspec.Meta(description="replace every occurrence")] = False


class MultieditParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    path: Annotated[str, msgspec.Meta(description="the file")]
    edits: Annotated[list[OneEdit], msgspec.Meta(min_length=1, max_length=MAX_EDITS, description="in their order")]


def _changes(params: MultieditParams) -> list[Change]:
    return [Change(edit.old_string, edit.new_string, edit.replace_all) for edit in params.edits]


async def wants(place: Place, params: MultieditParams) -> Sequence[Want]:
    return await wants_of(place, params.path, _changes(params))


async def run(ctx: ToolContext, params: MultieditParams) -> Output:
    return await carry_out(ctx, params.path, _changes(params))


MULTIEDIT = Tool(name="multiedit", params=MultieditParams, run=run, wants=wants)
