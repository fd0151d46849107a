"""The `lsp_` tools: diagnostics, navigation and changes by language servers. Loaded where a server is installed."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import msgspec

from kedge.files.diffs import MAX_RESULT_CHARS, cut_diff, diff
from kedge.protocol.tools import BUILT_IN_TOOLS
from kedge.tools.errors import ToolError
from kedge.tools.port import (
    Access,
    FileEdit,
    LanguageService,
    Output,
    Tool,
    ToolContext,
    ToolScope,
    display_path,
    resolve_path,
)
from kedge.tools.text.edit_plan import EditPlan, apply_plan, make_access
from kedge.tools.text.text_file import decode_text, read_text_file

Offset = Annotated[int, msgspec.Meta(ge=0, description="results to skip, for the next page")]


class PlaceParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    path: Annotated[str, msgspec.Meta(description="the file")]
    line: Annotated[int, msgspec.Meta(ge=1, description="the line, counted from 1")]
    symbol: Annotated[str, msgspec.Meta(min_length=1, description="the name, as it is in that line")]


def get_service(scope: ToolScope) -> LanguageService:
    if scope.languages is None:
        raise ToolError("Language servers are switched off here;", "use grep and view instead.")
    return scope.languages


async def list_read_access(scope: ToolScope, given: str) -> Sequence[Access]:
    path = await asyncio.to_thread(resolve_path, scope, given)
    return (Access(kind="read", subject=str(path), description=f"read {display_path(scope, path)}"),)


async def list_place_access(scope: ToolScope, params: PlaceParams) -> Sequence[Access]:
    return await list_read_access(scope, params.path)


async def resolve(scope: ToolScope, given: str) -> Path:
    return await asyncio.to_thread(resolve_path, scope, given)


def list_plan_access(plans: Sequence[EditPlan]) -> Sequence[Access]:
    return [make_access(plan) for plan in plans]


async def make_plans(scope: ToolScope, edits: Sequence[FileEdit]) -> list[EditPlan]:
    """Return the edits as plans with diffs. Raises `ToolError` if a file changed meanwhile."""
    return await asyncio.to_thread(lambda: [_make_plan(scope, edit) for edit in edits])


def _make_plan(scope: ToolScope, edit: FileEdit) -> EditPlan:
    shown = display_path(scope, edit.path)
    before = read_text_file(edit.path, shown)
    if before.digest != edit.digest:
        raise ToolError(f"{shown} changed meanwhile.", "Make the call again.")
    after = decode_text(edit.data)[0].replace("\r\n", "\n")
    is_viewed = str(edit.path) in scope.known_files and str(edit.path) not in scope.unviewed_files
    return EditPlan(edit.path, shown, before, edit.data, diff(before.text, after, shown), [], is_viewed)


async def apply_plans(ctx: ToolContext, plans: Sequence[EditPlan], what: str) -> Output:
    """Change several files. Raises `ToolError` before the first one if a file is among them that was not approved."""
    if any(plan.path not in ctx.approved_paths for plan in plans):
        raise ToolError(f"What {what} would change is no longer the same.", "Make the call again.")
    results = [(await apply_plan(ctx, plan)).metadata or {} for plan in plans]
    metadata: dict[str, object] = {
        "files": {path: digest for each in results for path, digest in each["files"].items()},
        "unviewed": [path for each in results for path in each.get("unviewed", ())],
        "diff": cut_diff("".join(each["diff"] for each in results), MAX_RESULT_CHARS),
        "added": sum(plan.diff.added for plan in plans),
        "removed": sum(plan.diff.removed for plan in plans),
    }
    count = f"{len(plans)} file{'' if len(plans) == 1 else 's'}"
    return Output(
        content="\n".join([f"Changed {count}:", *(f"{plan.shown} ({plan.diff.counts})" for plan in plans)]),
        metadata=metadata,
    )


class DiagnosticsParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    path: Annotated[str | None, msgspec.Meta(description="a file; not given: all files viewed or edited so far")] = None
    offset: Offset = 0


async def list_diagnostics_access(scope: ToolScope, params: DiagnosticsParams) -> Sequence[Access]:
    return await list_read_access(scope, params.path) if params.path is not None else ()


async def run_diagnostics(ctx: ToolContext, params: DiagnosticsParams) -> Output:
    path = await resolve(ctx, params.path) if params.path is not None else None
    return Output(content=await get_service(ctx).list_diagnostics(path, ctx, params.offset))


async def run_definition(ctx: ToolContext, params: PlaceParams) -> Output:
    path = await resolve(ctx, params.path)
    return Output(content=await get_service(ctx).find_definition(path, params.line, params.symbol, ctx))


class ReferencesParams(PlaceParams, frozen=True, kw_only=True):
    offset: Offset = 0


async def run_references(ctx: ToolContext, params: ReferencesParams) -> Output:
    path = await resolve(ctx, params.path)
    service = get_service(ctx)
    return Output(content=await service.find_references(path, params.line, params.symbol, ctx, params.offset))


async def run_hover(ctx: ToolContext, params: PlaceParams) -> Output:
    path = await resolve(ctx, params.path)
    return Output(content=await get_service(ctx).describe_symbol(path, params.line, params.symbol, ctx))


class SymbolsParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    path: Annotated[str | None, msgspec.Meta(description="a file, for its outline")] = None
    query: Annotated[str | None, msgspec.Meta(description="part of a name, to search in the whole project")] = None
    offset: Offset = 0


async def list_symbols_access(scope: ToolScope, params: SymbolsParams) -> Sequence[Access]:
    return await list_read_access(scope, params.path) if params.path is not None else ()


async def run_symbols(ctx: ToolContext, params: SymbolsParams) -> Output:
    service = get_service(ctx)
    if params.path is not None:
        return Output(content=await service.list_symbols(await resolve(ctx, params.path), ctx, params.offset))
    if not params.query:
        raise ToolError("Neither path nor query is given;", "give one of them.")
    return Output(content=await service.search_symbols(params.query, ctx, params.offset))


class RenameParams(PlaceParams, frozen=True, kw_only=True):
    new_name: Annotated[str, msgspec.Meta(min_length=1, description="the new name")]


async def list_rename_access(scope: ToolScope, params: RenameParams) -> Sequence[Access]:
    return list_plan_access(await _plan_rename(scope, params))


async def run_rename(ctx: ToolContext, params: RenameParams) -> Output:
    return await apply_plans(ctx, await _plan_rename(ctx, params), "the rename")


async def _plan_rename(scope: ToolScope, params: RenameParams) -> list[EditPlan]:
    path = await resolve(scope, params.path)
    edits = await get_service(scope).plan_rename(path, params.line, params.symbol, params.new_name, scope)
    return await make_plans(scope, edits)


class CodeActionParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    path: Annotated[str, msgspec.Meta(description="the file")]
    first_line: Annotated[int, msgspec.Meta(ge=1, description="counted from 1")]
    last_line: Annotated[int, msgspec.Meta(ge=0, description="the same line unless given")] = 0
    title: Annotated[str | None, msgspec.Meta(description="the action to apply; not given: lists them")] = None


async def list_code_action_access(scope: ToolScope, params: CodeActionParams) -> Sequence[Access]:
    if params.title is None:
        return await list_read_access(scope, params.path)
    return list_plan_access(await _plan_code_action(scope, params, params.title))


async def run_code_action(ctx: ToolContext, params: CodeActionParams) -> Output:
    if params.title is not None:
        return await apply_plans(ctx, await _plan_code_action(ctx, params, params.title), "the action")
    path = await resolve(ctx, params.path)
    titles = await get_service(ctx).list_action_titles(path, params.first_line, _last_line(params), ctx)
    return Output(content="\n".join(titles) or "No actions for these lines.")


async def _plan_code_action(scope: ToolScope, params: CodeActionParams, title: str) -> list[EditPlan]:
    path = await resolve(scope, params.path)
    edits = await get_service(scope).plan_action(path, params.first_line, _last_line(params), title, scope)
    return await make_plans(scope, edits)


def _last_line(params: CodeActionParams) -> int:
    return max(params.first_line, params.last_line)


TOOLS = (
    Tool(
        facts=BUILT_IN_TOOLS["lsp_diagnostics"],
        params=DiagnosticsParams,
        run=run_diagnostics,
        list_access=list_diagnostics_access,
    ),
    Tool(facts=BUILT_IN_TOOLS["lsp_definition"], params=PlaceParams, run=run_definition, list_access=list_place_access),
    Tool(
        facts=BUILT_IN_TOOLS["lsp_references"],
        params=ReferencesParams,
        run=run_references,
        list_access=list_place_access,
    ),
    Tool(facts=BUILT_IN_TOOLS["lsp_hover"], params=PlaceParams, run=run_hover, list_access=list_place_access),
    Tool(facts=BUILT_IN_TOOLS["lsp_symbols"], params=SymbolsParams, run=run_symbols, list_access=list_symbols_access),
    Tool(
        facts=BUILT_IN_TOOLS["lsp_rename"],
        params=RenameParams,
        run=run_rename,
        list_access=list_rename_access,
        changes_several=True,
    ),
    Tool(
        facts=BUILT_IN_TOOLS["lsp_code_action"],
        params=CodeActionParams,
        run=run_code_action,
        list_access=list_code_action_access,
        changes_several=True,
    ),
)
